"""What a difference between the plain and the drafted text comes from: rounding at a near-tie, or a fault.

Knows two rows of logits for one context, and how the target draws from a row. Does not know who drafted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sooner import tree
from sooner.protocols import Target
from sooner.sampling import Processor, RowLaw, log_softmax, top_logprobs
from sooner.text import TextCodec
from sooner.types import Logits, Request, Work

__all__ = ["FAULT", "NEAR_TIE", "ROUNDING", "Candidate", "Difference", "Evidence", "explain", "row_spread"]

NEAR_TIE, ROUNDING, FAULT = "numeric near-tie", "rounding", "fault"
"""Another token by rounding; the same tokens with other bits; anything that rounding cannot explain."""

_TOP = 5
_STRANGE = 0.25
"""Rounding leaves a row recognisable: a larger part of its variation is no rounding, whatever row counts do."""

_SLACK = 2.0
"""Times the largest difference between row counts that still counts as rounding: few counts are tried."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token, its text, and its log-probability in one row."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a text is not the plain one.

    ``position``: output position. ``plain`` and ``drafted``: the likeliest tokens of both rows. ``margin``: by how
    much, in logits, the plain row prefers its own choice to the other's, noise included. ``largest``: of any logit's
    difference between the two rows; ``spread``: the largest between row counts for the same context, measured then and
    there. ``kind``: `NEAR_TIE`, `ROUNDING` or `FAULT`, and ``why`` in words.
    """

    drafter: str
    batch: int
    budget: int | None
    temperature: float
    prompt: int
    seed: int
    position: int
    kind: str
    why: str
    wanted: Candidate | None = None
    got: Candidate | None = None
    plain: tuple[Candidate, ...] = ()
    drafted: tuple[Candidate, ...] = ()
    margin: float = 0.0
    largest: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """Both rows at the first difference. ``wanted`` and ``got``: the tokens that were emitted there."""

    request: Request
    before: tuple[int, ...]
    plain: Logits
    drafted: Logits
    wanted: int
    got: int


def explain(evidence: Evidence, target: Target, codec: TextCodec) -> dict[str, Any]:
    """The fields of a `Difference` from ``kind`` on."""
    law = _law(evidence, evidence.plain, target)
    other = _law(evidence, evidence.drafted, target)
    largest = float(np.abs(evidence.plain - evidence.drafted).max())
    spread = row_spread(target, evidence.request.prompt + evidence.before)
    margin = _margin(evidence, target)
    kind, why = _verdict(evidence, (law, other), largest, spread)

    def candidates(row: Logits) -> tuple[Candidate, ...]:
        found = top_logprobs(log_softmax(row), evidence.wanted, _TOP).top
        return tuple(Candidate(token, _text(codec, token), logprob) for token, logprob in found)

    def chosen(row: Logits, token: int) -> Candidate:
        return Candidate(token, _text(codec, token), float(log_softmax(row)[token]))

    return {
        "kind": kind,
        "why": why,
        "wanted": chosen(evidence.plain, evidence.wanted),
        "got": chosen(evidence.drafted, evidence.got),
        "plain": candidates(evidence.plain),
        "drafted": candidates(evidence.drafted),
        "margin": margin,
        "largest": largest,
        "spread": spread,
    }


def _verdict(evidence: Evidence, laws: tuple[RowLaw, RowLaw], largest: float, spread: float) -> tuple[str, str]:
    plain, drafted = (law.draw() for law in laws)
    if plain != evidence.wanted or drafted != evidence.got:
        return FAULT, "a token was emitted that its own row does not give: the rule is at fault, not the numbers"
    if not largest:
        return FAULT, "both rows are the same bits and another token was emitted"
    if largest > _SLACK * spread:
        counted = (
            f"between row counts they differ by at most {spread:.3g} here" if spread else "row counts do not matter"
        )
        return FAULT, f"the rows differ by {largest:.3g}, and {counted}: the cache or the layout is at fault"
    if _strangeness(evidence) > _STRANGE:
        return FAULT, f"the rows differ by {largest:.3g} and have little in common: they belong to different contexts"
    if evidence.wanted == evidence.got:
        return ROUNDING, "the same token from rows that differ as they do between row counts"
    return NEAR_TIE, "the rows differ as they do between row counts, and two tokens were that close"


def _strangeness(evidence: Evidence) -> float:
    """The difference of the two rows in parts of how much a row varies: 0 for the same, about 1 for strangers."""
    varies = float(np.std(evidence.plain))
    return float(np.sqrt(np.mean((evidence.plain - evidence.drafted) ** 2))) / varies if varies else 0.0


def row_spread(target: Target, tokens: Sequence[int], counts: Sequence[int] = (16, 8, 4, 2, 1)) -> float:
    """The largest difference of any logit of the row after ``tokens`` when it is the last of so many scored rows, and
    alone beside a neighbour: 0.0 where rows are invariant."""
    known = tuple(tokens)
    session = target.open(salt=f"sooner.audit {time.monotonic_ns()}")
    rows = []
    try:
        for count in (n for n in counts if n <= len(known)):
            session.sync(known[: len(known) - count])
            while len(session.tokens) < len(known) - count:
                at = len(session.tokens)
                head = known[at : min(at + _CHUNK, len(known) - count)]
                target.score([Work(session, head, logits=False)])
            draft = tree.chain(known[len(known) - count + 1 :], 1.0, "audit")
            work = Work(session, known[len(session.tokens) : len(known) - count + 1], draft)
            rows.append(target.score([work])[0].logits[-1].copy())
        rows.append(_beside_another(target, known))
    finally:
        session.close()
    return max(float(np.abs(row - rows[0]).max()) for row in rows)


def _beside_another(target: Target, tokens: tuple[int, ...]) -> Logits:
    sessions = [target.open(salt=f"sooner.audit {time.monotonic_ns()} {i}") for i in range(2)]
    try:
        for session in sessions:
            for at in range(0, len(tokens) - 1, _CHUNK):
                target.score([Work(session, tokens[at : min(at + _CHUNK, len(tokens) - 1)], logits=False)])
        works = [
            Work(session, tokens[-1:], tree.chain(tokens[:3] * i, 1.0, "audit")) for i, session in enumerate(sessions)
        ]
        row: Logits = target.score(works)[0].logits[0].copy()
        return row
    finally:
        for session in sessions:
            session.close()


_CHUNK = 256


def _law(evidence: Evidence, row: Logits, target: Target) -> RowLaw:
    processor = _processor(evidence, target)
    return processor.law(row)


def _processor(evidence: Evidence, target: Target) -> Processor:
    sampling = evidence.request.sampling
    processor = Processor(
        sampling, vocab_size=target.vocab_size, seed=sampling.seed or 0, prompt=evidence.request.prompt
    )
    for token in evidence.before:
        processor.push(token)
    return processor


def _margin(evidence: Evidence, target: Target) -> float:
    """How far apart, in logits of the plain row, the two tokens are in the target's own draw."""
    pair = [evidence.wanted, evidence.got]
    scores = evidence.plain[pair].astype(np.float64)
    temperature = evidence.request.sampling.temperature
    if temperature > 0:
        scores -= temperature * np.log(_processor(evidence, target).noise(len(evidence.before), pair))
    return float(scores[0] - scores[1])


def _text(codec: TextCodec, token: int) -> str:
    return codec.token_bytes(token).decode("utf-8", "replace")
