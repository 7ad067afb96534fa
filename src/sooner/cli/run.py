"""``sooner run``: one prompt, one answer. Knows how an answer is shown. Does not know how it comes about."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.answer import fingerprint_line, follow, summary, warn_about
from sooner.cli.engine import engine_options, open_engine, sampling_from
from sooner.cli.failures import INTERRUPTED
from sooner.cli.groups import taking
from sooner.cli.output import Output, notes, print_json, say, warn
from sooner.cli.prompt import ask, expected_text, read_prompt, sound_of
from sooner.errors import InvalidRequest, SoonerError

if TYPE_CHECKING:
    from sooner.completion import Completion
    from sooner.engine import Engine
    from sooner.trace import Recorder, TraceFile
    from sooner.types import Request, Sampling, Step

__all__ = ["HELP", "run"]

HELP = o.page("""Answer one prompt.

The text streams to stdout, token by token; everything else goes to stderr. The drafter makes it appear sooner and
never changes it: the same prompt, options, seed and fingerprint give the same text with every drafter and without one.

The prompt is the argument, a file, or whatever is piped in. With a chat model it becomes the user's message, unless
--raw is given.

[bold]Examples[/bold]

  sooner run "Why is the sky blue?"
  sooner run "Summarise this article." -f article.txt
  git diff | sooner run -s "Write a commit message for this diff."
  sooner run "Add type hints." -f app.py --expected @app.py
  sooner run "Write a story." -t 0.8 --seed 7 --json | jq .speculation
  sooner run "Explain recursion." --compare
  sooner run -m ./Qwen2-VL-2B-Instruct --backend torch --image cat.png "What is on the cushion?"
  sooner run -m ./whisper-small --backend torch --audio talk.wav

[bold]Exit codes[/bold]

  0  done
  1  --compare found a difference; or the reader of the text went away; or sooner itself failed
  2  bad input, with a line that says what to do
  130  Ctrl-C; what was written stays, and --json still prints its object""")


@taking(g.ENGINE, g.DRAFTING, g.SAMPLING, g.TRUNCATION, g.PENALTIES)
def run(
    context: typer.Context,
    prompt: o.PromptText = None,
    *,
    file: o.File = None,
    image: o.Image = None,
    audio: o.Audio = None,
    language: o.Language = None,
    task: o.Task = None,
    system: o.System = None,
    raw: o.Raw = False,
    expected: o.Expected = None,
    stop: o.Stop = None,
    n: o.Number = 1,
    ignore_eos: o.IgnoreEos = False,
    json: o.Json = False,
    no_stream: o.NoStream = False,
    logprobs: o.Logprobs = None,
    trace: o.Trace = None,
    trace_alternatives: o.TraceAlternatives = None,
    compare: o.Compare = None,
    verbose: o.Verbose = False,
) -> None:
    """Answer one prompt (see HELP)."""
    options = engine_options(context.params)
    guess = expected_text(expected, options.draft)
    drafter, rule = options.drafting()
    sampling = sampling_from(context.params, rule)
    plain = drafter is None or options.budget == 0
    if trace is None and trace_alternatives is not None:
        raise InvalidRequest("--trace-alternatives says what a trace holds: add --trace FILE", "trace_alternatives")
    _check(sampling, compare=compare is not None, trace=trace is not None, json=json, plain=plain)
    text = read_prompt(prompt, file, raw=raw, needed=audio is None)
    message = ask(text, system, raw=raw, images=image, sound=sound_of(audio, language, task))
    with ExitStack() as stack:
        record = stack.enter_context(_trace(trace)) if trace is not None else None
        engine = open_engine(context, options)
        _demand(engine, image=bool(image), audio=audio is not None)
        if trace is not None:
            engine.alternatives = 3 if trace_alternatives is None else trace_alternatives
        request = engine.request(message, sampling, raw=raw, **({} if guess is None else {"expected": guess}))
        if compare is not None:
            if engine.drafter is None:  # by the profile of this model
                raise InvalidRequest(
                    "--compare needs a drafter, and sooner tune found plain fastest: add --draft cascade"
                )
            from sooner.cli.compare import run_compare

            raise typer.Exit(run_compare(engine, request, compare, json=json))
        answer = Answer(engine, request, record, json=json, stream=not no_stream and not json)
        completion = answer.run()
    _close(completion, json=json, verbose=verbose, seed=sampling.temperature > 0)
    if answer.interrupted:
        raise typer.Exit(INTERRUPTED)


def _demand(engine: Engine, *, image: bool, audio: bool) -> None:
    """Refuse pictures and sounds that the model does not take."""
    from sooner.prompt import demand_pictures, demand_sounds

    if image:
        demand_pictures(engine.target, "image")
    if audio:
        demand_sounds(engine.target, "audio")


def _check(sampling: Sampling, *, compare: bool, trace: bool, json: bool, plain: bool) -> None:
    """Refuse options that would have no effect together."""
    if sampling.logprobs is not None and not json and not trace:
        raise InvalidRequest("--logprobs shows in --json and --trace only: add one of them", "logprobs")
    if compare and (trace or sampling.n > 1):
        raise InvalidRequest("--compare runs many texts: leave out --trace and -n")
    if compare and plain:
        raise InvalidRequest("--compare needs a drafter to compare with plain decoding: leave out none and --budget 0")


def _trace(path: str) -> TraceFile:
    from sooner.trace import TraceFile

    return TraceFile(path)


def _close(completion: Completion, *, json: bool, verbose: bool, seed: bool) -> None:
    """What follows the text."""
    if json:
        print_json(_object(completion))
    warn_about(completion)
    console = notes()
    if verbose:
        say(fingerprint_line(completion))
    if verbose or (console.is_terminal and not json):
        console.print(summary(completion, seed=seed or verbose))
    elif not completion.speculation.lossless:
        warn(f"LOSSY: {completion.speculation.verify} changes what the model would have written")


def _object(completion: Completion) -> dict[str, Any]:
    """The --json object; with -n the first answer's, and all of them in ``choices``."""
    value = completion.to_dict()
    if completion.others:
        value["choices"] = [{"choice": choice.choice, **choice.to_dict()} for choice in completion.choices]
    return value


class Answer:
    """One request being followed: its first choice streams, the others are printed after it, every step is traced."""

    def __init__(self, engine: Engine, request: Request, trace: TraceFile | None, *, json: bool, stream: bool) -> None:
        self._engine = engine
        self._request = request
        self._file = trace
        self._trace: Recorder | None = None
        self._json = json
        self._stream = stream
        self.interrupted = False

    def run(self) -> Completion:
        """Print and trace until the end or Ctrl-C; the figures are those of what was written."""
        handle = self._engine.submit(self._request)
        if self._file is not None:
            from sooner.trace import Recorder

            self._trace = Recorder(self._file.write, self._engine, handle)
        with Output() as out:
            try:
                self.interrupted = follow(self._engine, handle, partial(self._show, out))
            except SoonerError as error:
                if self._trace is not None:
                    self._trace.finish(None, str(error))
                raise
            completion = self._engine.completion(handle)
            if not self._json:
                self._print_rest(out, completion)
        if self._trace is not None:
            self._trace.finish(completion)
        return completion

    def _show(self, out: Output, step: Step) -> None:
        if self._trace is not None:
            self._trace.step(step)
        if self._stream and step.choice == 0:
            out.write(step.text)

    def _print_rest(self, out: Output, completion: Completion) -> None:
        for choice in completion.choices:
            if completion.others:
                out.end()
                if choice.choice or not self._stream:
                    out.write(f"--- answer {choice.choice + 1} of {len(completion.choices)} ---\n")
            if choice.choice or not self._stream:
                out.write(choice.text)
