"""The speed-up of one configuration over another from paired, interleaved runs, with a bootstrap interval.

Knows seconds and tokens. Does not know what was run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Ratio", "ratio"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """``value`` times as fast, with a 95 % interval from ``low`` to ``high`` over ``pairs`` paired runs."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def shown(self) -> bool:
        """Whether the interval excludes 1; a ratio whose interval crosses it shows no difference."""
        return self.low > 1.0 or self.high < 1.0

    def __str__(self) -> str:
        interval = f"{self.value:.2f}x [{self.low:.2f}, {self.high:.2f}]"
        return interval if self.shown else f"no difference shown ({interval})"


def ratio(base_seconds: Sequence[float], seconds: Sequence[float], *, samples: int = 2000, seed: int = 0) -> Ratio:
    """How many times as fast the second series is: total base time over total time, pairs resampled together.

    Both series measure the same work, pair by pair, in one interleaved run (A B A B). Resampling pairs keeps what a
    noisy machine did to both. Raises `ValueError` unless there is an equal, positive number of each.
    """
    if len(base_seconds) != len(seconds) or not len(seconds):
        raise ValueError(f"paired series of equal length are needed, not {len(base_seconds)} and {len(seconds)}")
    a, b = np.asarray(base_seconds, dtype=float), np.asarray(seconds, dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(a), size=(samples, len(a)))
    resampled = a[picks].sum(axis=1) / b[picks].sum(axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Ratio(float(a.sum() / b.sum()), float(low), float(high), len(a))
