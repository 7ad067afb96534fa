"""Arithmetic that the ratio rules share: what is left of p after q, and of q after a draw.

Knows two distributions. Does not know trees, coins or rules.
"""

from __future__ import annotations

import numpy as np

from sooner.types import Probabilities

__all__ = ["excess", "one_hot", "residual", "without"]


def excess(p: Probabilities, q: Probabilities, scale: float = 1.0) -> Probabilities:
    """``(scale * p - q)+``, ``[V]``, a new array (only one: at real vocabularies allocating costs more than adding)."""
    rest = scale * p
    rest -= q
    return np.maximum(rest, 0.0, out=rest)


def residual(p: Probabilities, q: Probabilities) -> Probabilities:
    """``norm((p - q)+)``, ``[V]``; p itself where nothing is left, which happens by rounding only."""
    rest = excess(p, q)
    total = rest.sum()
    if not total > 0:
        return p
    rest /= total
    return rest


def without(q: Probabilities, token: int) -> Probabilities:
    """The law of the next draw without replacement after ``token``: zero there, renormalised.

    All zero when q has no mass left; then nothing more can have been drawn from it.
    """
    rest = q.copy()
    rest[token] = 0.0
    total = rest.sum()
    if total > 0:
        rest /= total
    return rest


def one_hot(vocab_size: int, token: int) -> Probabilities:
    """``[V]``, certain of ``token``."""
    row = np.zeros(vocab_size)
    row[token] = 1.0
    return row
