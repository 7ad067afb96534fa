"""From what drafters claim to how often the target agreed: exact bookkeeping with a prior, learned from emitted text.

Knows claims and outcomes. Does not know tokens or costs.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Calibration", "confidence_bin", "depth_bin"]

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 0.975)

_PRIOR = 6.0
"""How many observations a claim itself is worth."""

_MEMORY = 400.0
"""Old observations fade so that a bin never weighs more than this: traffic changes."""

_LIMIT = 8192
"""Bins kept; past it nothing new is learned (claims count as they are)."""


def confidence_bin(confidence: float) -> int:
    """The class of a claimed probability; narrower near 0 and 1, where rows are won and lost."""
    return sum(confidence > edge for edge in _EDGES)


def depth_bin(depth: int) -> int:
    """1, 2, 3-4, 5-8, deeper."""
    return 0 if depth <= 1 else 1 if depth == 2 else 2 if depth <= 4 else 3 if depth <= 8 else 4


class Calibration:
    """Acceptance frequencies by key, shrunk towards the claim."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, float]] = {}

    def estimate(self, key: Hashable, claim: float) -> float:
        """The chance of acceptance of a node claimed at ``claim``, after what was seen under ``key``."""
        hits, tries = self._seen.get(key, (0.0, 0.0))
        return (hits + _PRIOR * claim) / (tries + _PRIOR)

    def tries(self, key: Hashable) -> float:
        """Observations under ``key`` that still count."""
        return self._seen.get(key, (0.0, 0.0))[1]

    def learn(self, key: Hashable, hit: bool) -> None:
        """One node whose parent was on the emitted path was right or wrong."""
        hits, tries = self._seen.get(key, (0.0, 0.0))
        if tries == 0.0 and len(self._seen) >= _LIMIT:
            return
        if tries >= _MEMORY:
            hits, tries = hits * (1 - 1 / _MEMORY), tries * (1 - 1 / _MEMORY)
        self._seen[key] = (hits + hit, tries + 1.0)
