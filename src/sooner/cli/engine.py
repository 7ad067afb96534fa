"""The engine a command runs: from its options to a drafter, a rule, a sampling and a loaded model.

Knows options and what `sooner.load` takes. Does not know what any single command does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from sooner.cli.output import say
from sooner.cli.progress import progress
from sooner.errors import DraftError

if TYPE_CHECKING:
    from sooner.engine import Engine
    from sooner.types import Sampling

__all__ = [
    "EngineOptions",
    "Loader",
    "clipped",
    "engine_options",
    "open_engine",
    "remote_engine",
    "sampling_from",
    "startup_lines",
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
    backend: str = "auto"
    device: str | None = None
    quantization: str | None = None
    adapter: str | None = None
    strict: bool = False
    compile: bool = False
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
    from sooner.verify import create_verifier

    given = {name: parameters[name] for name in Sampling.__dataclass_fields__ if name in parameters}
    sampling = Sampling(**given | {"stop": tuple(parameters.get("stop") or ()), "verify": rule})
    create_verifier(rule)  # refuses the rule's options before a model is loaded
    return sampling


_MOST = 255
"""Draft tokens of a pass: with the token before them the rows of a pass that reads a prompt, for which memory is set
aside."""


def clipped(budget: int | None) -> int | None:
    """``budget``, or what a pass allows, said in a line."""
    if budget is None or budget <= _MOST:
        return budget
    say(f"a budget of {budget} draft tokens is more than a pass takes: it is {_MOST}")
    return _MOST


def open_engine(context: typer.Context, options: EngineOptions, **more: Any) -> Engine:
    """Load the model and its drafter, saying what is going on: a spinner on a terminal, lines with --verbose.

    ``more``: further options of `sooner.load`.
    """
    import sooner

    logging.getLogger("sooner").addHandler(logging.NullHandler())  # warnings reach the user through the completion
    load: Loader = context.obj or sooner.load
    given = _load_options(options)
    with progress("loading the model", verbose=options.verbose) as messages:
        engine = load(options.model, **given, progress=messages, **more)
    for drafter in getattr(engine.drafter, "members", (engine.drafter,)):
        for note in getattr(drafter, "notes", ()):
            say(note)
    if options.verbose:
        for line in startup_lines(engine, options):
            say(line)
    return engine


def remote_engine(load: Loader | None, options: EngineOptions, cpus: float, **more: Any) -> Callable[[], Engine]:
    """`open_engine` for another process that holds ``cpus`` processors: it can be sent there, and logs what is going on
    instead of showing it. Raises what `EngineOptions.drafting` raises."""
    import sooner

    given = _load_options(options)
    given["threads"] = options.threads or max(1, int(cpus))
    return partial(load or sooner.load, options.model, **given, progress=_log, **more)


def _log(message: str) -> None:
    logging.getLogger("sooner").info("%s", message)


def _load_options(options: EngineOptions) -> dict[str, Any]:
    """What `sooner.load` is given besides the model's name."""
    draft, _ = options.drafting()
    return {
        "draft": draft,
        "budget": clipped(options.budget),
        "precision": options.precision,
        "threads": options.threads,
        "pool_tokens": options.max_context,
        **_place(options),
        "offline": options.offline,
    }


def _place(options: EngineOptions) -> dict[str, Any]:
    """The options of `sooner.load` that say where the model runs; none where all is default."""
    torch = {name: getattr(options, name) for name in ("quantization", "adapter", "strict", "compile")}
    given = {"backend": options.backend, "device": options.device}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value not in ("auto", None)}
    return chosen | ({"torch": torch} if any(torch.values()) else {})


def startup_lines(engine: Engine, options: EngineOptions) -> list[str]:
    """What runs and why anything is off, one fact a line (the memory plan is among the loader's own lines)."""
    from sooner.verify import create_verifier

    target, codec = engine.target, engine.codec
    rule = create_verifier(options.drafting()[1])
    budget = getattr(engine.controller, "budget", None)
    lines = [f"model: {engine.name or 'unnamed'}"]
    if engine.drafter is None:
        why = "--draft none" if "none" in options.draft else "sooner tune found no drafter faster here"
        lines.append(f"drafter: none, every pass gives one token ({why})")
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
