"""The options that commands share, each declared once with its help, and how a help page is set.

Knows names and help texts, and nothing else.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

__all__ = [
    "PANELS",
    "Adapter",
    "Audio",
    "Backend",
    "Budget",
    "Compare",
    "Compile",
    "Context",
    "Device",
    "Draft",
    "Expected",
    "File",
    "FrequencyPenalty",
    "IgnoreEos",
    "Image",
    "Json",
    "Language",
    "Logprobs",
    "MaxTokens",
    "MinP",
    "Model",
    "NoStream",
    "Number",
    "Offline",
    "Precision",
    "PresencePenalty",
    "PromptText",
    "Quantization",
    "Raw",
    "RepetitionPenalty",
    "Seed",
    "SpeculativeConfig",
    "Stop",
    "Strict",
    "System",
    "Task",
    "Temperature",
    "Threads",
    "TopK",
    "TopP",
    "Trace",
    "TraceAlternatives",
    "Verbose",
    "Verify",
    "page",
]


def page(text: str) -> str:
    """A help page: paragraphs are set anew in the terminal's width, indented lines stay as they are."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(p if p.startswith(" ") else p.replace("\n", " ") for p in paragraphs)


PANELS = ("Input", "Workload", "Model", "Drafting", "Sampling", "Theory", "Result", "Output")
"""The panels of a help page, in order."""

_INPUT, _, _MODEL, _DRAFTING, _SAMPLING, _, _, _OUTPUT = PANELS

PromptText = Annotated[
    str | None,
    typer.Argument(metavar="[PROMPT]", help="What to ask. - reads it from standard input, as does leaving it out."),
]
File = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--file",
        metavar="FILE",
        rich_help_panel=_INPUT,
        help="Read the prompt from a UTF-8 file (- is standard input). With a PROMPT too, the file's text follows it.",
    ),
]
Image = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        metavar="FILE",
        rich_help_panel=_INPUT,
        help="A picture to look at, before the text: a path, file: or data: URL; may be given more than once (torch).",
    ),
]
Audio = Annotated[
    str | None,
    typer.Option(
        "--audio",
        metavar="FILE",
        rich_help_panel=_INPUT,
        help="A sound to write down: a WAV file's path, file: or data: URL (torch). PROMPT is what was said before it.",
    ),
]
Language = Annotated[
    str | None,
    typer.Option(
        "--language",
        metavar="CODE",
        rich_help_panel=_INPUT,
        help="What is spoken in --audio, such as en. (default: as the model's settings say, else it is heard)",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        rich_help_panel=_INPUT,
        help="What becomes of --audio: transcribe, or translate (into English). (default: as the model's settings say)",
    ),
]
System = Annotated[
    str | None,
    typer.Option(
        "-s", "--system", metavar="TEXT", rich_help_panel=_INPUT, help="What the model is told before the conversation."
    ),
]
Raw = Annotated[
    bool,
    typer.Option("--raw", rich_help_panel=_INPUT, help="Continue the text as it stands, without the chat template."),
]
Expected = Annotated[
    str | None,
    typer.Option(
        "--expected",
        metavar="TEXT|@FILE",
        rich_help_panel=_INPUT,
        help="What the answer will probably be, such as the code to be edited. Makes `given` the drafter.",
    ),
]

Model = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        rich_help_panel=_MODEL,
        help="A .gguf file, an OpenVINO or Hugging Face folder, or a Hugging Face id. (default: built in)",
    ),
]
Offline = Annotated[
    bool, typer.Option("--offline", rich_help_panel=_MODEL, help="Never download; say what to do instead.")
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, metavar="N", rich_help_panel=_MODEL, help="Processor threads. (default: all)"),
]
Precision = Annotated[
    Literal["auto", "bf16", "f32"],
    typer.Option(
        "--precision",
        rich_help_panel=_MODEL,
        help="What the model computes in; auto is bf16 where the processor has it.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=2,
        metavar="N",
        rich_help_panel=_MODEL,
        help="Most tokens of one text, prompt included. (default: as the model and the memory allow)",
    ),
]
Backend = Annotated[
    Literal["auto", "openvino", "torch"],
    typer.Option(
        "--backend",
        rich_help_panel=_MODEL,
        help="What runs the model; auto is openvino on the processor and torch on any other --device.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        rich_help_panel=_MODEL,
        help="Where the model runs: cpu, cuda, cuda:N or mps. (default: cpu; with --backend torch the best there is)",
    ),
]
Quantization = Annotated[
    Literal["4bit", "8bit"] | None,
    typer.Option("--quantization", rich_help_panel=_MODEL, help="Quantise weights on loading (torch, bitsandbytes)."),
]
Adapter = Annotated[
    str | None,
    typer.Option("--adapter", metavar="DIR", rich_help_panel=_MODEL, help="A LoRA adapter of the model (torch, peft)."),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict", rich_help_panel=_MODEL, help="Every pass in one fixed shape, so that rows are reproducible (torch)."
    ),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile", rich_help_panel=_MODEL, help="Passes of few fixed shapes, compiled; CUDA graphs on CUDA (torch)."
    ),
]

Draft = Annotated[
    list[str] | None,
    typer.Option(
        "--draft",
        metavar="SPEC",
        rich_help_panel=_DRAFTING,
        help="The drafter: a kind such as suffix, ngram or given, with options as in kind=ngram,max=8; "
        "none decodes plainly. (default: what sooner tune found, else suffix, recycle and table together)",
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        "--speculative-config",
        metavar="JSON",
        rich_help_panel=_DRAFTING,
        help="The drafter in vLLM's words, instead of --draft: "
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}.',
    ),
]
Budget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        min=0,
        metavar="N",
        rich_help_panel=_DRAFTING,
        help="Most tokens drafted per pass; 0 decodes plainly. (default: as many as pay on this machine)",
    ),
]
Verify = Annotated[
    str,
    typer.Option(
        "--verify",
        metavar="RULE",
        rich_help_panel=_DRAFTING,
        help="coupled: the same text as without drafting. rejection, block: the same distribution. "
        "typical, lenience: LOSSY, the text is no longer the model's own; with options, as in "
        "typical:epsilon=0.1,delta=0.2 and lenience:lenience=0.7.",
    ),
]

Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", rich_help_panel=_SAMPLING, help="Reproduces a text. (default: a fresh one)"),
]
Temperature = Annotated[
    float,
    typer.Option(
        "-t", "--temperature", metavar="T", rich_help_panel=_SAMPLING, help="0 always takes the likeliest token."
    ),
]
TopP = Annotated[
    float,
    typer.Option(
        "--top-p", metavar="P", rich_help_panel=_SAMPLING, help="Sample from the likeliest tokens that hold mass P."
    ),
]
TopK = Annotated[
    int,
    typer.Option("--top-k", metavar="K", rich_help_panel=_SAMPLING, help="Sample from the K likeliest; 0 is all."),
]
MinP = Annotated[
    float,
    typer.Option(
        "--min-p", metavar="P", rich_help_panel=_SAMPLING, help="Drop tokens below P times the likeliest one's mass."
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        "--repetition-penalty",
        metavar="R",
        rich_help_panel=_SAMPLING,
        help="Above 1 avoids tokens that prompt or text hold.",
    ),
]
PresencePenalty = Annotated[
    float,
    typer.Option(
        "--presence-penalty", metavar="R", rich_help_panel=_SAMPLING, help="Above 0 avoids tokens the text holds."
    ),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option("--frequency-penalty", metavar="R", rich_help_panel=_SAMPLING, help="The same, once per occurrence."),
]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", metavar="N", rich_help_panel=_SAMPLING, help="Most tokens written.")
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop", metavar="TEXT", rich_help_panel=_SAMPLING, help="End before this text; may be given more than once."
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", rich_help_panel=_SAMPLING, help="Go on where the model would end.")
]
Number = Annotated[
    int,
    typer.Option("-n", metavar="N", rich_help_panel=_SAMPLING, help="Answers to the one prompt, decoded side by side."),
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        metavar="N",
        rich_help_panel=_OUTPUT,
        help="Log-probabilities of each token and of the N likeliest, in the --json object or the trace.",
    ),
]

Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=_OUTPUT, help="Print one JSON object instead of the text.")
]
NoStream = Annotated[
    bool, typer.Option("--no-stream", rich_help_panel=_OUTPUT, help="Print the text when it is complete.")
]
Trace = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        rich_help_panel=_OUTPUT,
        help="Write every step to FILE as JSON lines, compressed if it ends in .gz. See sooner trace.",
    ),
]
TraceAlternatives = Annotated[
    int | None,
    typer.Option(
        "--trace-alternatives",
        min=0,
        max=100,
        metavar="N",
        rich_help_panel=_OUTPUT,
        help="The likeliest tokens that the trace names at each place. (default: 3)",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        rich_help_panel=_OUTPUT,
        help="Say on stderr what runs: drafter, budget, rule, context, memory, vocabulary, fingerprint.",
    ),
]
Compare = Annotated[
    int | None,
    typer.Option(
        "--compare",
        metavar="[PAIRS]",
        min=1,
        rich_help_panel=_OUTPUT,
        help="Decode plainly and drafted in turns (3 pairs unless told) and print speeds, ratio and whether the text "
        "is identical; exit code 1 if it is not.",
    ),
]
