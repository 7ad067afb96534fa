"""The options of ``sooner audit``, each with its help. Knows names and help texts, and nothing else."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from sooner.cli.options import page

__all__ = [
    "HELP",
    "Batches",
    "Budgets",
    "Control",
    "Drafters",
    "Draws",
    "HtmlFile",
    "JsonFile",
    "Length",
    "Plain",
    "Prompts",
    "Quick",
    "Restart",
    "Seed",
    "Temperatures",
    "Tokens",
    "Urls",
]

HELP = page("""Prove on your own model that drafting changes nothing, or find the place where it does.

The model answers prompts plainly, then once more under every drafter, hostile ones included: at several temperatures,
with short and long drafts, alone and side by side, from a cold and a warm cache. Token ids, log-probabilities and every
bit of the rows behind them must be the same. Where they are not, the report shows the first place, both rows' likeliest
tokens and how close they were, and says whether rounding explains it.

The rules that promise the same distribution instead of the same text (rejection, block) are enumerated coin by coin on
a toy, and their texts are tested against the model's own probabilities.

Some things are broken on purpose in every audit. One that does not notice them is void.

FILE holds prompts: one a line, or JSON lines with prompt, text, messages or turns; - is standard input. Without it,
built-in ones are used. The audit can be stopped at any time: the same command goes on where it ended.

[bold]Servers[/bold]

With --url a server that speaks OpenAI's API is audited from outside: the same requests with and without speculation.
Give two servers, the plain one first; or one that can be told per request, as sooner's can, and llama.cpp's with
--plain '{"speculative.n_max": 0}'. What a server cannot do (seeds, log-probabilities) is said, and the rest is audited.

[bold]Examples[/bold]

  sooner audit --quick                       about two minutes
  sooner audit --html report.html            100,000 tokens, under an hour
  sooner audit prompts.txt --draft all --draft kind=model,path=small.gguf
  sooner audit --quick --negative-control row-counts
  sooner audit --url http://127.0.0.1:8000
  sooner audit --url http://plain:8000 --url http://speculative:8000

[bold]Exit codes[/bold]

  0  nothing differs
  1  something does
  2  it could not be told: bad input, a part failed, or controls were missed
  130  Ctrl-C; the same command goes on""")

_WORKLOAD, _RESULT, _SERVER = "Workload", "Result", "Server"

Prompts = Annotated[
    str | None, typer.Argument(metavar="[FILE]", help="The prompts. - is standard input. (default: built-in ones)")
]
Quick = Annotated[
    bool, typer.Option("--quick", rich_help_panel=_WORKLOAD, help="Less of everything: about two minutes.")
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens",
        min=1,
        metavar="N",
        rich_help_panel=_WORKLOAD,
        help="Compare N drafted tokens, all drafters together. (default: 100000, with --quick 5000)",
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=2,
        metavar="N",
        rich_help_panel=_WORKLOAD,
        help="Most tokens of one text. (default: 64, with --quick 24)",
    ),
]
Temperatures = Annotated[
    list[float] | None,
    typer.Option(
        "-t",
        "--temperature",
        metavar="T",
        rich_help_panel=_WORKLOAD,
        help="May be given more than once. (default: 0, 0.8 and 1)",
    ),
]
Batches = Annotated[
    list[int] | None,
    typer.Option(
        "--batch",
        min=1,
        max=8,
        metavar="N",
        rich_help_panel=_WORKLOAD,
        help="Texts side by side; may be given more than once. (default: 1 and 4)",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, metavar="N", rich_help_panel=_WORKLOAD, help="Of the first text; others follow.")
]
Draws = Annotated[
    int | None,
    typer.Option(
        "--draws",
        min=0,
        metavar="N",
        rich_help_panel=_WORKLOAD,
        help="Texts drawn under each ratio rule; 0 leaves them out. (default: 20000, with --quick 2000)",
    ),
]
Drafters = Annotated[
    list[str] | None,
    typer.Option(
        "--draft",
        metavar="SPEC",
        rich_help_panel="Drafting",
        help="A drafter to audit, as in suffix@8 or kind=model,path=small.gguf; may be given more than once. all: "
        "every one that needs no model, and hostile ones. (default: all)",
    ),
]
Budgets = Annotated[
    list[int] | None,
    typer.Option(
        "--budget",
        min=0,
        max=255,
        metavar="N",
        rich_help_panel="Drafting",
        help="Draft tokens per pass; may be given more than once. (default: 1, 4, 12, and what the controller chooses)",
    ),
]
Control = Annotated[
    Literal["last-place", "row-counts", "swapped-rows"] | None,
    typer.Option(
        "--negative-control",
        rich_help_panel="Drafting",
        help="Break the model on purpose, to see what a difference looks like.",
    ),
]
Urls = Annotated[
    list[str] | None,
    typer.Option(
        "--url", metavar="URL", rich_help_panel=_SERVER, help="Audit this server; given twice, the plain one first."
    ),
]
Plain = Annotated[
    str | None,
    typer.Option(
        "--plain",
        metavar="JSON",
        rich_help_panel=_SERVER,
        help='What a request adds so that the one server does not speculate. (default: {"draft": "none"})',
    ),
]
JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="OUT", rich_help_panel=_RESULT, help="Write the report as JSON.")
]
HtmlFile = Annotated[
    str | None,
    typer.Option("--html", metavar="OUT", rich_help_panel=_RESULT, help="Write the report as one HTML page."),
]
Restart = Annotated[
    bool, typer.Option("--restart", rich_help_panel=_RESULT, help="Forget what an unfinished audit has found.")
]
