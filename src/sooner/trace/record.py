"""The trace format, schema 1: what a header, a step and a footer are as JSON objects, and a step read back.

Knows the records' fields. Does not know files, models or how anything was computed.

A trace is JSON Lines in UTF-8, written as the steps happen:

- one ``{"type": "header", "schema": 1, ...}``: versions, model, fingerprint, drafter, budget and the whole request
  (prompt ids, every sampling field, the seed that was used, expected ids, salt, whether it drafts, its constraint);
- one ``{"type": "step", ...}`` per step, with every field of `types.Step` under its own name. Times are milliseconds.
  A log-probability is ``[token, logprob, [[token, logprob], ...]]``, minus infinity being null. Of a sampled draft's
  rows q only their parents are kept, as ``sampled``: a row is as long as the vocabulary;
- one ``{"type": "footer", ...}`` with the figures of every choice, or with ``error``. A trace without one was cut off.

Readers must ignore fields they do not know; a change of meaning raises ``schema``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sooner.errors import InvalidRequest
from sooner.types import Draft, Finish, Step, TokenLogprob

if TYPE_CHECKING:
    from sooner.completion import Completion
    from sooner.engine import Engine, Handle

__all__ = ["SCHEMA", "footer_record", "header_record", "read_step", "step_record"]

SCHEMA = 1

_DRAFT_FIELDS = ("tokens", "parents", "confidence", "sources")


def header_record(engine: Engine, handle: Handle, **more: Any) -> dict[str, Any]:
    """What the steps depend on. ``more`` is added as it is (a version, a date)."""
    request, constraint = handle.request, handle.request.constraint
    drafting = request.drafting and engine.drafter is not None
    return {
        "type": "header",
        "schema": SCHEMA,
        **more,
        "model": engine.name,
        "fingerprint": dict(engine.fingerprint),
        "drafter": engine.drafter.name if drafting and engine.drafter is not None else "none",
        "budget": getattr(engine.controller, "budget", None),
        "context": engine.target.context,
        "vocab_size": engine.target.vocab_size,
        "eos_ids": sorted(engine.codec.eos_ids),
        "seed": handle.seed,
        "prompt": list(request.prompt),
        "sampling": _sampling(_fields(request.sampling)),
        "expected": list(request.expected),
        "salt": request.salt,
        "drafting": request.drafting,
        "constraint": None if constraint is None else {"kind": constraint.kind, "source": constraint.source},
    }


def step_record(step: Step) -> dict[str, Any]:
    """One step, every field of it."""
    fields = _fields(step)
    fields["draft"] = {
        **{name: list(getattr(step.draft, name)) for name in _DRAFT_FIELDS},
        "sampled": sorted(step.draft.q),
    }
    fields["logprobs"] = None if step.logprobs is None else [_logprob(entry) for entry in step.logprobs]
    fields["finish"] = None if step.finish is None else asdict(step.finish)
    return {"type": "step", **{name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}}


def read_step(record: Mapping[str, Any]) -> Step:
    """The step a record was made of, without the rows q of a sampled draft; what an older record lacks is default.

    Raises `InvalidRequest` if it is none.
    """
    try:
        values = {name: record[name] for name in Step.__dataclass_fields__ if name in record}
        draft = record["draft"]
        tokens, parents, confidence, sources = map(tuple, (draft[name] for name in _DRAFT_FIELDS))
        values["draft"] = Draft(tokens, parents, confidence, sources)
        for name in ("path", "tokens", "sources"):
            values[name] = tuple(record[name])
        if record.get("logprobs") is not None:
            values["logprobs"] = tuple(_read_logprob(*entry) for entry in record["logprobs"])
        if record.get("finish") is not None:
            values["finish"] = Finish(**record["finish"])
        return Step(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"not a step of trace schema {SCHEMA} ({error!r}): record the trace again") from error


def footer_record(completion: Completion | None, error: str | None = None) -> dict[str, Any]:
    """The figures of every choice, or why there are none."""
    if completion is None:
        return {"type": "footer", "error": error, "choices": []}
    names = ("finish_reason", "finish_detail", "usage", "speculation", "timings")
    choices = [(choice.choice, choice.to_dict()) for choice in completion.choices]
    return {
        "type": "footer",
        "error": error,
        "choices": [{"choice": index, **{name: figures[name] for name in names}} for index, figures in choices],
    }


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _sampling(fields: dict[str, Any]) -> dict[str, Any]:
    bias = {str(token): value for token, value in fields["logit_bias"].items()}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()} | {"logit_bias": bias}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _logprob(entry: TokenLogprob) -> list[Any]:
    return [entry.token, _number(entry.logprob), [[token, _number(value)] for token, value in entry.top]]


def _read_logprob(token: int, logprob: float | None, top: list[list[Any]]) -> TokenLogprob:
    pairs = tuple((token, -math.inf if value is None else value) for token, value in top)
    return TokenLogprob(token, -math.inf if logprob is None else logprob, pairs)
