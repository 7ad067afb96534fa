"""The trace format, schema 1: what a header, a step and a footer are as JSON objects, and a step read back.

Knows the records' fields (docs/traces.md has every one with its unit). Does not know files, models or how anything was
computed. Readers must ignore fields they do not know; a change of meaning raises `SCHEMA`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sooner.errors import InvalidRequest
from sooner.types import Draft, Finish, Odds, Step, TokenLogprob
from sooner.verify import create_verifier

if TYPE_CHECKING:
    from sooner.completion import Completion
    from sooner.engine import Engine, Handle

__all__ = ["SCHEMA", "TIMES", "footer_record", "header_record", "read_step", "step_record"]

SCHEMA = 1

TIMES = ("draft_ms", "score_ms", "verify_ms", "overhead_ms", "at_ms")
"""The fields of a step that no two runs share."""

_DRAFT_FIELDS = ("tokens", "parents", "confidence", "sources")


def header_record(engine: Engine, handle: Handle, *, withhold: bool = False, **more: Any) -> dict[str, Any]:
    """What the steps depend on. ``withhold``: leave out what the caller wrote: prompt, expected text, grammar.
    ``more`` is added as it is (a version, a date)."""
    request, constraint = handle.request, handle.request.constraint
    sampling = _sampling(_fields(request.sampling))
    return {
        "type": "header",
        "schema": SCHEMA,
        **more,
        "model": engine.name,
        "fingerprint": dict(engine.fingerprint),
        "row_invariant": engine.target.row_invariant,
        "drafter": handle.drafter,
        "lossless": create_verifier(request.sampling.verify).lossless,
        "budget": getattr(engine.controller, "budget", None),
        "context": engine.target.context,
        "vocab_size": engine.target.vocab_size,
        "eos_ids": sorted(engine.codec.eos_ids),
        "seed": handle.seed,
        "prompt": None if withhold else list(request.prompt),
        "prompt_tokens": len(request.prompt),
        "sampling": {**sampling, "stop": None, "bad_words": None, "logit_bias": None} if withhold else sampling,
        "expected": None if withhold else list(request.expected),
        "salt": None if withhold else request.salt,
        "drafting": request.drafting,
        "constraint": None
        if constraint is None
        else {"kind": constraint.kind, "source": None if withhold else constraint.source},
        "alternatives": engine.alternatives,
        "cost": None if engine.cost is None else engine.cost.to_dict(),
    }


def step_record(step: Step) -> dict[str, Any]:
    """One step, every field of it but q rows; times rounded to a microsecond, chances to four digits."""
    fields = _fields(step)
    odds = fields.pop("odds")
    fields["draft"] = {
        **{name: list(getattr(step.draft, name)) for name in _DRAFT_FIELDS},
        "confidence": list(map(_chance, step.draft.confidence)),
        "sampled": sorted(step.draft.q),
    }
    fields["logprobs"] = None if step.logprobs is None else [_logprob(entry) for entry in step.logprobs]
    fields["finish"] = None if step.finish is None else asdict(step.finish)
    for name in TIMES:
        fields[name] = round(fields[name], 3)
    if odds is not None:
        fields["draft"] |= {"p": list(map(_chance, odds.drafted)), "q": list(map(_chance, odds.q))}
        fields["p"] = list(map(_chance, odds.emitted))
        fields["top"] = [[[token, _chance(p)] for token, p in row] for row in odds.top]
    return {"type": "step", **{name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}}


def read_step(record: Mapping[str, Any]) -> Step:
    """The step a record was made of, without the rows q of a sampled draft; what an older record lacks is default.

    Raises `InvalidRequest` if it is none.
    """
    try:
        values = {name: record[name] for name in Step.__dataclass_fields__ if name in record and name != "odds"}
        draft = record["draft"]
        tokens, parents, confidence, sources = map(tuple, (draft[name] for name in _DRAFT_FIELDS))
        values["draft"] = Draft(tokens, parents, confidence, sources)
        for name in ("path", "tokens", "sources"):
            values[name] = tuple(record[name])
        if record.get("logprobs") is not None:
            values["logprobs"] = tuple(_read_logprob(*entry) for entry in record["logprobs"])
        if record.get("finish") is not None:
            values["finish"] = Finish(**record["finish"])
        if record.get("p") is not None:
            values["odds"] = _read_odds(record)
        return Step(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"not a step of trace schema {SCHEMA} ({error!r}): record the trace again") from error


def footer_record(
    completion: Completion | None, error: str | None = None, plain: tuple[float, str] | None = None
) -> dict[str, Any]:
    """The figures of every choice, or why there are none. ``plain``: what a step without a draft takes, and where that
    is from (`PlainStep.estimate`)."""
    plain_ms, plain_from = plain or (None, None)
    told = {"plain_ms": None if plain_ms is None else round(plain_ms, 3), "plain_from": plain_from}
    if completion is None:
        return {"type": "footer", "error": error, "choices": [], **told}
    names = ("finish_reason", "finish_detail", "usage", "speculation", "timings")
    choices = [(choice.choice, choice.to_dict()) for choice in completion.choices]
    return {
        "type": "footer",
        "error": error,
        "choices": [{"choice": index, **{name: figures[name] for name in names}} for index, figures in choices],
        **told,
    }


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _sampling(fields: dict[str, Any]) -> dict[str, Any]:
    bias = {str(token): value for token, value in fields["logit_bias"].items()}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()} | {"logit_bias": bias}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _chance(p: float | None) -> float | None:
    return None if p is None else float(f"{p:.4g}")


def _read_odds(record: Mapping[str, Any]) -> Odds:
    top = tuple(tuple((token, p) for token, p in row) for row in record["top"])
    return Odds(tuple(record["p"]), top, tuple(record["draft"]["p"]), tuple(record["draft"]["q"]))


def _logprob(entry: TokenLogprob) -> list[Any]:
    return [entry.token, _number(entry.logprob), [[token, _number(value)] for token, value in entry.top]]


def _read_logprob(token: int, logprob: float | None, top: list[list[Any]]) -> TokenLogprob:
    pairs = tuple((token, -math.inf if value is None else value) for token, value in top)
    return TokenLogprob(token, -math.inf if logprob is None else logprob, pairs)
