"""What commands have in common: the engine they use, the prompt they read, the lines before and after a text.

Knows how options become a drafter, a sampling and an engine. Does not know what any single command does.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from sooner.cli.output import notes, say, warn
from sooner.errors import DraftError, InvalidRequest

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

    from sooner.completion import Completion
    from sooner.engine import Engine
    from sooner.types import Sampling

__all__ = [
    "EngineOptions",
    "Loader",
    "ask",
    "engine_options",
    "expected_text",
    "fingerprint_line",
    "open_engine",
    "progress",
    "read_prompt",
    "sampling_from",
    "startup_lines",
    "summary",
    "warn_about",
]


Loader: TypeAlias = "Callable[..., Engine]"
"""What turns a model's name and the options of `sooner.load` into an engine: that function, or what a test puts in
its place. `main` hands it to the commands as the context's object, so that nothing has to be patched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options of every command that runs a model, as the command line gave them."""

    model: str | None = None
    draft: Sequence[str] = ()
    speculative_config: str | None = None
    budget: int | None = None
    verify: str = "coupled"
    expected: bool = False
    precision: str = "auto"
    threads: int | None = None
    max_context: int | None = None
    offline: bool = False
    verbose: bool = False

    def drafting(self) -> tuple[Sequence[str | Mapping[str, object]] | str | None, str]:
        """The drafters (None: none) and the verification rule. Raises `DraftError` before any model is looked for."""
        from sooner.draft import create_drafter, from_speculative_config, known_kinds, parse_spec
        from sooner.loading import AUTO_DRAFT, DEFAULT_DRAFT

        if self.speculative_config is not None:
            if self.draft:
                raise DraftError("--draft and --speculative-config name two drafters: keep one of them")
            config = from_speculative_config(self.speculative_config)
            if config.verify is not None and self.verify not in ("coupled", config.verify):
                raise DraftError(f"--verify {self.verify} and --speculative-config ask for two rules: keep one")
            return [config.draft] if config.draft is not None else None, config.verify or self.verify
        if not self.draft:
            return ["given", "suffix"] if self.expected else AUTO_DRAFT, self.verify
        if "none" in self.draft:
            if len(self.draft) > 1:
                raise DraftError("--draft none stands alone: leave out the others, or leave out none")
            return None, self.verify
        if self.draft == (DEFAULT_DRAFT,):
            return DEFAULT_DRAFT, self.verify
        specs = [parse_spec(spec) for spec in self.draft]
        for spec, text in zip(specs, self.draft, strict=True):
            if spec["kind"] not in known_kinds():
                create_drafter(text)  # raises, naming the kinds and the nearest of them
        return specs, self.verify


def engine_options(parameters: Mapping[str, Any]) -> EngineOptions:
    """The part of a command's parameters that the engine is made of; what a command has no option for is default."""
    given = {name: parameters[name] for name in EngineOptions.__dataclass_fields__ if name in parameters}
    given["draft"] = tuple(parameters.get("draft") or ())
    given["expected"] = parameters.get("expected") is not None
    return EngineOptions(**given)


def sampling_from(parameters: Mapping[str, Any], rule: str) -> Sampling:
    """The part of a command's parameters that says how tokens are chosen. Raises `InvalidRequest` naming the option."""
    from sooner.types import Sampling

    given = {name: parameters[name] for name in Sampling.__dataclass_fields__ if name in parameters}
    return Sampling(**given | {"stop": tuple(parameters.get("stop") or ()), "verify": rule})


def open_engine(context: typer.Context, options: EngineOptions, **more: Any) -> Engine:
    """Load the model and its drafter, saying what is going on: a spinner on a terminal, lines with --verbose.

    ``more``: further options of `sooner.load`.
    """
    import sooner

    logging.getLogger("sooner").addHandler(logging.NullHandler())  # warnings reach the user through the completion
    draft, _ = options.drafting()
    load: Loader = context.obj or sooner.load
    with progress("loading the model", verbose=options.verbose) as messages:
        engine = load(
            options.model,
            draft=draft,
            budget=options.budget,
            precision=options.precision,
            threads=options.threads,
            pool_tokens=options.max_context,
            offline=options.offline,
            progress=messages,
            **more,
        )
    for drafter in getattr(engine.drafter, "members", (engine.drafter,)):
        for note in getattr(drafter, "notes", ()):
            say(note)
    if options.verbose:
        for line in startup_lines(engine, options):
            say(line)
    return engine


@contextmanager
def progress(what: str, *, verbose: bool = False) -> Iterator[Callable[[str], None]]:
    """Where one-line messages go while something long happens: into a spinner on a terminal, else to stderr.

    Percentages become a bar on a terminal and are left out elsewhere. With ``verbose`` all are lines.
    """
    console = notes()
    if verbose:
        yield say
    elif console.is_terminal and not console.is_dumb_terminal:
        with console.status(what, spinner="dots") as status:
            yield lambda message: _show(message, status)
    else:
        yield lambda message: None if message.startswith(_PLAN) or _PERCENT.search(message) else say(message)


def _show(message: str, status: Status) -> None:
    if message.startswith(_KEPT):
        say(message)
    elif not message.startswith(_PLAN):
        status.update(_with_bar(message))


_KEPT = "profile "
"""How messages begin that must not pass by unread in a spinner."""

_PLAN = ("memory:", "tuned:")
"""How messages begin that are for --verbose only: the memory plan, the profile in use."""

_PERCENT = re.compile(r"\b(\d{1,3}) %")


def _with_bar(message: str) -> str:
    """``message`` behind a bar of twenty cells if it holds a percentage."""
    from rich.markup import escape

    found = _PERCENT.search(message)
    if found is None:
        return escape(message)
    cells = min(20, int(found[1]) // 5)
    return f"[green]{'━' * cells}[/green][dim]{'━' * (20 - cells)}[/dim] {escape(message)}"


def startup_lines(engine: Engine, options: EngineOptions) -> list[str]:
    """What runs and why anything is off, one fact a line (the memory plan is among the loader's own lines)."""
    from sooner.verify import create_verifier

    target, codec = engine.target, engine.codec
    rule = create_verifier(options.drafting()[1])
    budget = getattr(engine.controller, "budget", None)
    lines = [f"model: {engine.name or 'unnamed'}"]
    if engine.drafter is None:
        lines.append("drafter: none, every pass gives one token (--draft none)")
    elif budget == 0:
        lines.append(f"drafter: {engine.drafter.name}, off: the budget is 0 (--budget)")
    else:
        most = f"at most {budget} tokens" if budget else "as many tokens as the controller finds worth it"
        lines.append(f"drafter: {engine.drafter.name}, {most} a pass")
    lines.append(f"verification: {rule.name}, {'lossless' if rule.lossless else 'LOSSY'}")
    lines.append(
        "rows: the same bits however they are scored, so drafting cannot change the text"
        if target.row_invariant
        else "rows: depend on how they are scored, so the text is the plain one up to near-ties (sooner doctor)"
    )
    fits = "fits" if codec.vocab_size <= target.vocab_size else "DOES NOT FIT"
    lines.append(
        f"vocabulary: the tokenizer's {codec.vocab_size} tokens, {fits} the model's {target.vocab_size} logits; "
        "the drafter works on the target's own tokens"
    )
    lines.append(f"context: {target.context} tokens, prompt and answer together")
    return lines


def fingerprint_line(completion: Completion) -> str:
    """All that the text depends on besides prompt and options."""
    facts = ", ".join(f"{name} {value}" for name, value in completion.fingerprint.items())
    return f"fingerprint: seed {completion.seed}, {facts}"


def summary(completion: Completion, *, seed: bool = False) -> Text:
    """The line after a text: tokens, speed, first token, acceptance length, drafter, and the ``seed`` if it matters."""
    from rich.text import Text

    spoken, timings = completion.speculation, completion.timings
    tokens = sum(choice.usage.completion_tokens for choice in completion.choices)
    facts = [
        f"{tokens} token{'s' if tokens != 1 else ''}",
        f"{timings.tokens_per_second:.1f} tokens/s",
        f"TTFT {timings.ttft_ms:.0f} ms",
        f"acceptance length {spoken.acceptance_length:.2f}",
        f"drafter {spoken.drafter}",
    ]
    if not spoken.lossless or spoken.verify != "coupled":
        facts.append(f"verify {spoken.verify}")
    if seed:
        facts.append(f"seed {completion.seed}")
    if completion.finish_reason != "stop":
        facts.append({"length": "length limit", "abort": "interrupted"}.get(completion.finish_reason, "failed"))
    lossy = () if spoken.lossless else ((" · ", "dim"), ("LOSSY", "bold red"))
    return Text.assemble((" · ".join(facts), "dim"), *lossy)


def read_prompt(prompt: str | None, file: str | None, *, raw: bool = False) -> str:
    """The prompt from the argument, ``file`` (behind the argument, if both) or standard input.

    Newlines that end a file or a pipe are dropped unless ``raw``. Raises `InvalidRequest` if there is none.
    """
    if file is None and (prompt == "-" or (prompt is None and not sys.stdin.isatty())):
        prompt, file = None, "-"
    if prompt is None and file is None:
        raise InvalidRequest(
            'there is no prompt: write one, as in sooner run "Why is the sky blue?", give --file, or pipe it in',
            "prompt",
        )
    text = "" if file is None else _read(file)
    text = text if raw else text.rstrip("\r\n")
    if prompt is not None:
        text = f"{prompt}\n\n{text}" if file is not None else prompt
    if not text.strip():
        raise InvalidRequest("the prompt is empty: give some text", "prompt")
    return text


def expected_text(value: str | None, draft: Sequence[str]) -> str | None:
    """The text of --expected, from its file if it begins with @. A drafter that ignores it is pointed out."""
    if value is None:
        return None
    if draft and draft[0].partition(":")[0].removeprefix("kind=").partition(",")[0] in _BLIND:
        raise InvalidRequest(f"--draft {draft[0]} does not read --expected: use --draft given, or leave one out")
    text = _read(value[1:], option="--expected") if value.startswith("@") else value
    if not text:
        raise InvalidRequest("--expected is empty: give the text, @FILE, or leave it out", "expected")
    return text


_BLIND = ("none", "corpus", "memory", "ngram", "oracle", "random", "recycle", "self", "suffix", "table")


def _read(file: str, option: str = "--file") -> str:
    where = "standard input" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where} is not UTF-8 text: convert it first, as with iconv -t utf-8") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(f"{option} {where} cannot be read ({reason}): check the path") from None


def ask(text: str, system: str | None, *, raw: bool) -> str | list[dict[str, str]]:
    """The prompt as the engine takes it: text, or messages when there is a system message."""
    if system is None:
        return text
    if raw:
        raise InvalidRequest("--raw continues the text as it stands and has no place for --system: leave one out")
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def warn_about(completion: Completion) -> None:
    """Print what the completions complain of, each complaint once."""
    for warning in dict.fromkeys(choice.speculation.warning for choice in completion.choices):
        if warning:
            warn(warning)
