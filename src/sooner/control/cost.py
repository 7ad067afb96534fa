"""What a pass costs on this machine: milliseconds by rows, sequences, branches and context, measured and refined.

Knows a target by its contract and a clock. Does not know drafts' worth.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.protocols import Session, Target
from sooner.types import Draft, Work

__all__ = ["CostCurve", "measure_cost"]

_ROWS = (2, 4, 6, 8, 16, 24)

_FAR = 4
"""How many times the first context is the one that shows what context costs."""


@dataclass(frozen=True, slots=True)
class CostCurve:
    """``ms[i]``: a pass of one sequence with ``rows[i]`` rows (ascending, the first is a plain step's).

    ``sequence_ms``: each further sequence in the pass, besides its rows. ``branch_ms``: each further branch of a tree.
    ``refeed``: rows that a branch feeds again per node above it (1 where branches are sibling chains, 0 where a mask
    lays a tree out). ``change_ms``: what a pass of another width than the one before costs on top (0 where shapes
    are free). ``context_ms``: what each row costs more per token of context beyond ``context``, at which the rest was
    measured. Times are of passes of constant width.
    """

    rows: tuple[int, ...]
    ms: tuple[float, ...]
    sequence_ms: float = 0.0
    branch_ms: float = 0.0
    refeed: float = 0.0
    change_ms: float = 0.0
    context_ms: float = 0.0
    context: int = 0

    def __call__(
        self, rows: NDArray[np.float64], sequences: int, branches: NDArray[np.float64], context: float = 0.0
    ) -> Any:
        """Milliseconds of steady passes with ``rows`` rows in all, each after ``context`` tokens, and ``branches``
        further branches, elementwise."""
        inside = np.interp(rows, self.rows, self.ms)
        beyond = np.maximum(rows - self.rows[-1], 0.0) * self.row_ms
        attention = rows * (self.context_ms * max(0.0, context - self.context))
        return inside + beyond + attention + self.branch_ms * branches + self.sequence_ms * (sequences - 1)

    @property
    def row_ms(self) -> float:
        """The mean price of one more row."""
        return (self.ms[-1] - self.ms[0]) / (self.rows[-1] - self.rows[0])

    def break_even(self, rows: int) -> float:
        """The extra tokens a pass of ``rows`` rows must yield to be worth more than a plain one."""
        ms = float(self(np.array([float(rows)]), 1, np.zeros(1))[0])
        return ms / self.ms[0] - 1.0

    def to_dict(self) -> dict[str, Any]:
        """For the profile on disk."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> CostCurve:
        """What `to_dict` gave. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        if missing := cls.__dataclass_fields__.keys() - record.keys():
            raise KeyError(*missing)
        curve = cls(**{**record, "rows": tuple(record["rows"]), "ms": tuple(map(float, record["ms"]))})
        if len(curve.rows) != len(curve.ms) or len(curve.rows) < 2:
            raise ValueError("a cost curve needs a time for each of at least two row counts")
        return curve


def measure_cost(target: Target, *, context: int = 128, repeats: int = 2) -> CostCurve:
    """Measure a target in under two seconds for a small model. Interleaved, the quicker quarter, monotone in rows.

    A target too small for the widest pass gets `NOMINAL`.
    """
    session, other = target.open(salt="cost"), target.open(salt="cost")
    try:
        tokens = _room(target, session, other, min(context, target.context - _ROWS[-1]))
        if not tokens:
            return NOMINAL
        for one in (session, other):
            target.score([Work(one, tokens, logits=False)])
        shapes = _shapes(session, other)
        first: list[float] = []
        steady: dict[object, list[float]] = {}
        for turn in range(repeats + 1):
            for name, pairs in shapes:
                works = [Work(one, (tokens[-1],), draft) for one, draft in pairs]
                change, *rest = [_timed(target, works, len(tokens)) for _ in range(3)]
                if turn:
                    steady.setdefault(name, []).extend(rest)
                    first.append(change - min(rest))
        context_ms = _context_ms(target, session, tokens, _quick(steady[8])) if target.context > 2 * context else 0.0
    finally:
        session.close()
        other.close()
    curve = _curve({name: _quick(values) for name, values in steady.items()}, statistics.median(first))
    return replace(curve, context_ms=context_ms, context=len(tokens))


NOMINAL = CostCurve(rows=(2, 8, 24), ms=(1.0, 1.3, 2.3), branch_ms=0.05, refeed=1.0)
"""The shape that passes have on most processors, for targets that cannot be measured; only ratios matter."""


def _context_ms(target: Target, session: Session, tokens: tuple[int, ...], near_ms: float) -> float:
    """What a row costs more per token of context: eight rows far back against eight rows near, ``near_ms``."""
    more = tokens * (_FAR - 1)
    if not target.fits([Work(session, more, _chain(7))]) or len(tokens) + len(more) + 8 > target.context:
        return 0.0
    target.score([Work(session, more, logits=False)])
    work = Work(session, (tokens[-1],), _chain(7))
    far_ms = _quick([_timed(target, [work], len(tokens) + len(more)) for _ in range(6)][1:])
    return max(0.0, far_ms - near_ms) / (8 * len(more))


def _room(target: Target, session: Session, other: Session, most: int) -> tuple[int, ...]:
    """The tokens to measure behind: as many as ``most`` for which two sessions and a wide pass fit; none if none do."""
    for count in (most, most // 2, most // 4, most // 8):
        tokens = tuple((7 * i + 11) % target.vocab_size for i in range(max(count, 0)))
        wide = Work(session, tokens, _chain(_ROWS[-1]))
        if count >= 8 and target.fits([wide, Work(other, tokens, _chain(_ROWS[-1]))]):
            return tokens
    return ()


def _quick(times: Sequence[float]) -> float:
    """The quicker quarter's bound: what the machine does when nothing else runs on it."""
    return float(np.percentile(times, 25))


Shapes = list[tuple[object, list[tuple[Session, Draft]]]]


def _shapes(session: Session, other: Session) -> Shapes:
    """What is timed, by growing width, so that every first pass of a shape is a change."""
    found: Shapes = [(rows, [(session, _chain(rows - 1))]) for rows in _ROWS]
    at = _ROWS.index(8) + 1
    found[at:at] = [("fork", [(session, _fork(3))]), ("two", [(session, _chain(3)), (other, _chain(3))])]
    at = _ROWS.index(16) + 2
    found[at:at] = [("deep", [(session, _deep_fork())])]
    return found


def _curve(ms: dict[object, float], change_ms: float) -> CostCurve:
    plain = np.maximum.accumulate([ms[rows] for rows in _ROWS])
    at = {rows: float(value) for rows, value in zip(_ROWS, plain, strict=True)}
    # two chains of three nodes below the root: seven rows under a mask, eight as sibling chains, which feed the root
    # twice; the deep fork has eight rows under a mask, fourteen as sibling chains
    row_ms = max((at[24] - at[4]) / 20, 1e-6)
    refeed = 1.0 if ms["deep"] - at[8] > 3.0 * row_ms else 0.0
    return CostCurve(
        rows=_ROWS,
        ms=tuple(float(value) for value in plain),
        sequence_ms=max(0.0, ms["two"] - at[8]),
        branch_ms=max(0.0, ms["fork"] - float(np.interp(7 + refeed, _ROWS, plain))),
        refeed=refeed,
        change_ms=max(0.0, change_ms),
    )


def _timed(target: Target, works: Sequence[Work], keep: int) -> float:
    begin = time.perf_counter()
    target.score(works)
    spent = (time.perf_counter() - begin) * 1e3
    for work in works:
        work.session.sync(work.session.tokens[:keep])
    return spent


def _chain(nodes: int) -> Draft:
    return Draft(tuple(range(20, 20 + nodes)), tuple(range(-1, nodes - 1)), (0.5,) * nodes, ("cost",) * nodes)


def _fork(each: int) -> Draft:
    parents = (*range(-1, each - 1), -1, *range(each, 2 * each - 1))
    return Draft(tuple(range(20, 20 + 2 * each)), parents, (0.5,) * 2 * each, ("cost",) * 2 * each)


def _deep_fork() -> Draft:
    parents = (-1, 0, 1, 2, 3, 4, 4)
    return Draft(tuple(range(20, 27)), parents, (0.5,) * 7, ("cost",) * 7)
