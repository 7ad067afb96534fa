"""``sooner trace verify``: which engine decides a trace again, and what is said of the verdict.

Knows headers, options and verdicts. Does not know how anything is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer

from sooner.cli.engine import engine_options, open_engine
from sooner.cli.output import print_json, say, tables
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from sooner.cli.engine import EngineOptions
    from sooner.engine import Engine
    from sooner.text import TextCodec
    from sooner.trace import Trace
    from sooner.trace.proof import Mismatch, Proof

__all__ = ["verify_trace"]


def verify_trace(context: typer.Context, trace: Trace, *, steps: bool, json: bool) -> bool:
    """Verify a trace that has just been opened and say what was found; returns whether it is proven."""
    from sooner.trace.proof import check, prove

    header, told = trace.header, trace.header.get("fingerprint")
    check(header)  # before any model is loaded
    facts: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    engine = open_engine(context, _options(context.params, header, facts), max_running=8)
    if facts.get("model") != engine.fingerprint.get("model"):
        names = (str(one.get("model"))[:12] for one in (facts, engine.fingerprint))
        theirs, ours = names
        raise InvalidRequest(
            f"the trace is of {header.get('model')} ({theirs}), this is {engine.name} ({ours}): name the trace's own "
            "model with --model"
        )
    proof = prove(engine, header, trace, steps=steps)
    foreign = {name: [value, engine.fingerprint.get(name)] for name, value in facts.items()}
    foreign = {name: pair for name, pair in foreign.items() if pair[0] != pair[1]}
    if json:
        verdict = {"proven": proof.mismatch is None, "checked": proof.checked, "passes": proof.passes}
        found = None if proof.mismatch is None else asdict(proof.mismatch)
        print_json({**verdict, "mismatch": found, "fingerprint_differs": foreign})
    else:
        _report(header, proof, foreign, engine)
    return proof.mismatch is None


def _options(parameters: Mapping[str, Any], header: Mapping[str, Any], facts: Mapping[str, Any]) -> EngineOptions:
    """The engine's options, with the trace's own model and precision where none are named."""
    options = engine_options({**parameters, "draft": ("none",)})
    if options.model is None:
        options = replace(options, model=_in_cache(facts.get("model")) or header.get("model") or None)
    if options.precision == "auto" and facts.get("precision") in ("bf16", "f32"):
        options = replace(options, precision=facts["precision"])
    return options


def _in_cache(sha256: object) -> str | None:
    """``sha256`` if a model of the cache has it: then it is that one, whatever it is called."""
    from sooner.store import list_models

    return sha256 if isinstance(sha256, str) and any(files.sha256 == sha256 for files in list_models()) else None


def _report(header: Mapping[str, Any], proof: Proof, foreign: Mapping[str, list[Any]], engine: Engine) -> None:
    from rich.text import Text

    for name, (theirs, ours) in foreign.items():
        say(f"{name}: recorded under {theirs}, verified under {ours}")
    console = tables()
    model = header.get("model") or "the model"
    if proof.mismatch is None:
        told = f"{model} writes this text for this prompt, these options and seed {header.get('seed')}"
        console.print(Text.assemble(("proven: ", "bold green"), told))
        console.print(Text(f"{proof.checked:,} tokens decided again in {proof.passes:,} passes", style="dim"))
        return
    found = proof.mismatch
    recorded, ours = (_shown(found, value, engine.codec) for value in (found.recorded, found.found))
    where = f"{model} has another {found.what} at position {found.position} of answer {found.choice + 1}"
    console.print(Text.assemble(("not proven: ", "bold red"), where))
    console.print(Text(f"  recorded {recorded}\n  found    {ours}"))
    if foreign:
        say("the recorded engine was another, so this may be a near-tie: verify where it was recorded", style="")
    elif not engine.target.row_invariant:
        say("rows depend on how they are scored here, so this may be a near-tie: see sooner doctor", style="")


def _shown(found: Mismatch, value: Any, codec: TextCodec) -> str:
    from sooner.cli.render import piece

    return f"{piece(codec, value)!r}, token {value}" if found.what == "token" else repr(value)
