"""Counter-based randomness: the exponential noise of the coupled draw, and the coins of the ratio rules.

Every number is a pure function of (seed, domain, position, token id). Knows no model, no draft and no time.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sooner.types import Probabilities

__all__ = ["NOISE_VERSION", "Domain", "StepCoins", "choice_seed", "exponentials", "fresh_seed", "race", "stream_key"]

NOISE_VERSION = "1"
"""Changes whenever a seed would give another text; part of every fingerprint."""

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB

Hashes = NDArray[np.uint64]


class Domain(IntEnum):
    """Separate streams of one seed. Draft, acceptance and target noise must never share one (Leviathan et al., 2.3)."""

    TARGET = 0
    ACCEPT = 1
    DRAFT = 2
    CHOICE = 3


def fresh_seed() -> int:
    """A seed in [0, 2**32) from the operating system, short enough to be typed again."""
    return secrets.randbits(32)


def _mix(x: int) -> int:
    """The SplitMix64 finaliser (Steele, Lea, Flood 2014; constants of Stafford's variant 13)."""
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)


def stream_key(seed: int, domain: Domain, position: int) -> int:
    """The 64-bit start of the stream at one position."""
    key = _mix((seed + _GAMMA) & _MASK)
    key = _mix((key + (domain + 1) * _GAMMA) & _MASK)
    return _mix((key + position * _MIX_1) & _MASK)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of choice ``choice`` of a request; choice 0 keeps the request's own."""
    return seed if choice == 0 else stream_key(seed, Domain.CHOICE, choice)


_BLOCK = 16384
"""Ids hashed at a time: temporaries of this size stay in the allocator, larger ones cost more than the arithmetic."""


def _hashes(key: int, ids: Hashes) -> Hashes:
    """The SplitMix64 outputs number ``ids`` of the stream that starts at ``key``, as uint64."""
    x = ids * np.uint64(_GAMMA)
    shifted = np.empty_like(x)
    x += np.uint64((key + _GAMMA) & _MASK)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        x ^= np.right_shift(x, np.uint64(shift), out=shifted)
        x *= np.uint64(factor)
    x ^= np.right_shift(x, np.uint64(31), out=shifted)
    return x


def _indices_above(key: int, ids: Hashes, floor: int) -> NDArray[np.intp]:
    """The indices into ``ids`` whose hash is at least ``floor``."""
    found = [
        start + np.flatnonzero(_hashes(key, ids[start : start + _BLOCK]) >= np.uint64(floor))
        for start in range(0, len(ids), _BLOCK)
    ]
    return np.concatenate(found)


def _uniforms(hashes: Hashes) -> Probabilities:
    """The upper 52 bits as a number in the open interval (0, 1); 52, so that the largest does not round to one."""
    return ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def exponentials(key: int, ids: Sequence[int] | NDArray[np.integer]) -> Probabilities:
    """Exp(1) noise for token ids ``ids`` of one stream, float64, each in [2**-53, 36.8)."""
    if len(ids) <= _FEW:
        return -np.log([_uniform(key, int(i)) for i in ids])
    unsigned: Hashes = np.asarray(ids, dtype=np.uint64)
    return -np.log(_uniforms(_hashes(key, unsigned)))


_FEW = 12
"""Up to here plain integers are quicker than arrays; both give the same bits."""


def _uniform(key: int, index: int) -> float:
    """One of `_uniforms(_hashes(key, ...))`."""
    return ((_mix((key + (index + 1) * _GAMMA) & _MASK) >> 12) + 0.5) * 2.0**-52


_HEAD = 12.0
"""Natural-log distance from the best logit inside which the noise of every token is computed in full."""


def race(key: int, ids: Hashes, logits: NDArray[np.floating], temperature: float = 1.0) -> int:
    """The coupled draw: the index into ``ids`` that minimises E / p, with ``p ~ exp(logits / temperature)``.

    ``ids`` ascending uint64 ``[n]``, ``logits`` ``[n]`` (any constant offset; -inf never wins); ties go to the lowest.
    It is the exact arg-max of ``logits / temperature - log E`` in float64 over all n, without most of the logarithms:
    a token ``_HEAD`` below the best needs extremely small noise to win, which its hash shows without a logarithm
    (Daliri, Musco, Suresh 2408.07978, section 3).
    """
    edge = logits.max() - _HEAD * temperature
    head = np.flatnonzero(logits >= edge)
    scores = logits[head].astype(np.float64) / temperature - np.log(exponentials(key, ids[head]))
    winner = int(scores.argmax())
    top, index = scores[winner], int(head[winner])
    if len(head) == len(ids):
        return index
    # A tail token wins only if E < exp(z - top) <= bound, hence (u = exp(-E) >= 1 - E) only if u > 1 - bound. The
    # margin covers the rounding of the edge in the logits' own precision.
    bound = float(np.exp(min(float(edge) / temperature - top + 1e-3, 0.0)))
    rare = _indices_above(key, ids, max(0, int((1.0 - bound) * 2.0**64) - 2**13))
    rare = rare[logits[rare] < edge]
    if len(rare):
        tail = logits[rare].astype(np.float64) / temperature - np.log(exponentials(key, ids[rare]))
        challenger = int(tail.argmax())
        if tail[challenger] > top or (tail[challenger] == top and rare[challenger] < index):
            return int(rare[challenger])
    return index


class StepCoins:
    """The coins of one step of one sequence (`protocols.Coins`): a stream keyed by seed, domain and step.

    Keyed by step, not by position: rows behind the last accepted token have already influenced the stop, so their
    randomness must not come back (block verification, Sun et al. 2403.10444, is biased across steps otherwise).
    """

    def __init__(self, seed: int, step: int, domain: Domain = Domain.ACCEPT) -> None:
        self._key = stream_key(seed, domain, step)
        self._count = 0

    def _uniform(self) -> float:
        self._count += 1
        return _uniform(self._key, self._count - 1)

    def accept(self, numerator: float, denominator: float = 1.0) -> bool:
        """True with probability ``min(1, numerator / denominator)``."""
        return self._uniform() * denominator < numerator

    def draw(self, weights: Probabilities) -> int:
        """An index with probability proportional to ``weights``, by inversion of the cumulated sum."""
        cumulated = np.cumsum(weights)
        index = int(np.searchsorted(cumulated, self._uniform() * cumulated[-1], side="right"))
        if index < len(weights) and weights[index] > 0:
            return index
        return int(np.flatnonzero(weights)[-1])
