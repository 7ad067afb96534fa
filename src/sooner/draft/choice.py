"""Which of several ways to draft is followed further by the target, measured as they take turns.

Knows proposals and what was emitted. Does not know how anything is drafted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sooner.protocols import Context
from sooner.types import ROOT, Draft, Step

__all__ = ["Choice", "followed"]

_TRIALS = 12.0
"""Proposals of each way before the better one is preferred."""

_PROBE = 32
"""Afterwards every so many proposals another way has its turn: texts change."""

_MEMORY = 200.0


class Choice:
    """Takes turns between ``ways`` per kind of request (greedy, coupled, ratio rule), then prefers the better one."""

    def __init__(self, ways: Sequence[str]) -> None:
        self.ways = tuple(ways)
        self._seen: dict[tuple[Hashable, str], tuple[float, float]] = {}
        self._turn = 0
        self._last: dict[int, tuple[Hashable, str, Draft | None]] = {}

    def pick(self, context: Context) -> str:
        """The way for this proposal."""
        kind = (context.noise is None, context.coins is None)
        self._turn += 1
        best = max(self.ways, key=lambda way: self.mean(kind, way))
        least = min(self.ways, key=lambda way: self._seen.get((kind, way), (0.0, 0.0))[1])
        trying = self._seen.get((kind, least), (0.0, 0.0))[1] < _TRIALS or self._turn % _PROBE == 0
        way = least if trying else best
        self._last[context.id] = (kind, way, None)
        return way

    def mean(self, kind: Hashable, way: str) -> float:
        """Tokens followed per proposal so far."""
        followed, count = self._seen.get((kind, way), (0.0, 0.0))
        return followed / count if count else 0.0

    def proposed(self, context: Context, draft: Draft) -> None:
        """What came of the way last picked for the sequence."""
        kind, way, _ = self._last[context.id]
        self._last[context.id] = (kind, way, draft)

    def observe(self, step: Step) -> None:
        """How far the emitted tokens follow the sequence's last proposal."""
        kind, way, draft = self._last.pop(step.sequence, (None, "", None))
        if draft is None:
            return
        tokens, count = self._seen.get((kind, way), (0.0, 0.0))
        if count >= _MEMORY:
            tokens, count = tokens * (1 - 1 / _MEMORY), count * (1 - 1 / _MEMORY)
        self._seen[kind, way] = (tokens + followed(draft, step.tokens), count + 1.0)

    def forget(self, id: int) -> None:
        """The sequence ended; what was learned stays."""
        self._last.pop(id, None)


def followed(draft: Draft, tokens: Sequence[int]) -> int:
    """How many of ``tokens`` are a path of ``draft``."""
    at, count = ROOT, 0
    for token in tokens:
        child = draft.child(at, token)
        if child is None:
            break
        at, count = child, count + 1
    return count
