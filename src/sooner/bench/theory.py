"""The laws of speculative decoding as formulas: tokens a step, speed-up, operations, memory traffic, the best length.

Knows numbers. Does not know how they are measured. (Leviathan et al. 2023, arXiv 2211.17192; names are theirs: alpha
the chance that a guess is kept, gamma the length of a draft, c the price of one guess in plain passes. The price v of
a pass over gamma + 1 rows is added to theirs, where it is one.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = [
    "alpha_of_runs",
    "best_length",
    "memory",
    "operations",
    "speed_up",
    "tokens_by_position",
    "tokens_per_step",
]


def tokens_per_step(alpha: float, length: int) -> float:
    """Equation 1: expected tokens of a step, the target's own included, if every guess is kept with chance ``alpha``
    independently: ``(1 - alpha^(length + 1)) / (1 - alpha)``."""
    return float(length + 1) if alpha >= 1.0 else (1.0 - alpha ** (length + 1)) / (1.0 - alpha)


def tokens_by_position(kept: Sequence[float], length: int) -> float:
    """The same without independence: ``kept[i]`` is the measured chance that at least i + 1 guesses of a step are kept.

    Exact for whatever process the chances were measured on, since an expectation is the sum of its tail.
    """
    return 1.0 + sum(kept[:length])


def speed_up(tokens: float, length: int, c: float, v: float = 1.0) -> float:
    """Theorem 3.8 with the price ``v`` of the checking pass: ``tokens / (length * c + v)``; theirs has v = 1."""
    return tokens / (length * c + v)


def operations(tokens: float, length: int, c_hat: float) -> float:
    """Theorem 3.11: arithmetic operations in those of plain decoding, ``(length * c_hat + length + 1) / tokens``;
    ``c_hat``: operations of one guess in those of one plain pass."""
    return (length * c_hat + length + 1) / tokens


def memory(tokens: float) -> float:
    """Reads of the target's weights and cache in those of plain decoding (section 3.4): one pass for all its tokens."""
    return 1.0 / tokens


def best_length(speeds: Mapping[int, float]) -> int:
    """The draft length of the largest of ``speeds`` (speed-up by length); 0 where none is above one."""
    best = max(speeds, key=lambda length: speeds[length], default=0)
    return best if best and speeds[best] > 1.0 else 0


def alpha_of_runs(kept: Sequence[int], length: int) -> float:
    """The likeliest alpha behind steps that kept ``kept[i]`` of ``length`` guesses: kept over checked, where a step
    that kept fewer than all checked one more (a geometric law cut at ``length``)."""
    checked = sum(kept) + sum(one < length for one in kept)
    return sum(kept) / checked if checked else 0.0
