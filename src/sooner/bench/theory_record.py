"""What measurements come to beside the laws: one record per drafter, temperature and draft length.

Knows trails, timed texts and formulas. Does not know how they were taken or how they are shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sooner.bench import theory
from sooner.bench.ratio import ratio
from sooner.bench.theory_run import PLAIN_LENGTH, Timed
from sooner.bench.theory_shadow import Trail

__all__ = ["TOLERANCE", "Acceptance", "Best", "Length", "acceptance", "best", "lengths"]

TOLERANCE = 0.1
"""How far a prediction may lie from what was measured."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A drafter on plainly decoded texts.

    ``alpha``: the paper's, the mean chance over all ``positions`` that a first guess is kept, positions without a guess
    counted as zero; ``low`` and ``high`` its 95 % interval over texts. ``agreed``: the share of positions whose first
    guess was right, which is alpha but for drafters that count: those are asked for their law, and draft what is
    likeliest in it. ``covered``: positions with a guess.
    ``repeats``: how much likelier a guess is kept right after one that was kept than after one that was not (1 if
    guesses were independent, as the paper assumes). ``kept[i]``: share of the steps of the longest drafts that keep
    at least i + 1. ``tokens[length]``: tokens a step of drafts that long.
    """

    drafter: str
    temperature: float
    alpha: float
    low: float
    high: float
    agreed: float
    covered: float
    repeats: float | None
    positions: int
    kept: tuple[float, ...]
    tokens: Mapping[int, float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Length:
    """One draft length of one drafter: predicted and measured.

    ``c``: the price of a guess, ``v``: that of the checking pass with all the loop does around it, both in plain
    passes. ``tokens``, ``speed``, ``operations``, ``memory``: by prediction (``paper``: equation 1 from alpha with
    v = 1 and c as measured; ``priced``: the same with v; ``positions``: v and the measured acceptance by position)
    and ``measured``. ``low``, ``high``: the 95 % interval of the measured speed-up over texts.
    """

    drafter: str
    temperature: float
    length: int
    alpha: float
    c: float
    v: float
    tokens: Mapping[str, float]
    speed: Mapping[str, float]
    low: float
    high: float
    operations: Mapping[str, float]
    memory: Mapping[str, float]

    def holds(self, prediction: str) -> bool:
        """Whether a predicted speed-up is within `TOLERANCE` of the measured one."""
        return abs(self.speed[prediction] / self.speed["measured"] - 1.0) <= TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "holds": {name: self.holds(name) for name in self.speed if name != "measured"}}


@dataclass(frozen=True, slots=True)
class Best:
    """The best length by prediction and as found (0: none is faster than plain decoding), and what each brings."""

    drafter: str
    temperature: float
    length: Mapping[str, int]
    measured: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def acceptance(drafter: str, temperature: float, trails: Sequence[Trail], lengths: Sequence[int]) -> Acceptance:
    """What plainly decoded texts say of a drafter."""
    longest = max(lengths)
    chances = [np.asarray(trail.chances) for trail in trails if trail.chances]
    low, high = _interval([(float(one.sum()), len(one)) for one in chances])
    hits = [[trail.kept(at) > 0 for at in range(len(trail.tokens))] for trail in trails]
    steps = [step for trail in trails for step in trail.steps(longest)]
    walked = {length: [kept for trail in trails for _, kept in trail.steps(length)] for length in lengths}
    positions = sum(map(len, chances))
    return Acceptance(
        drafter,
        temperature,
        float(sum(one.sum() for one in chances)) / positions,
        low,
        high,
        sum(map(sum, hits)) / positions,
        sum(bool(chain) for trail in trails for chain in trail.chains) / positions,
        _repeats(hits),
        positions,
        tuple(sum(kept > i for _, kept in steps) / len(steps) for i in range(longest)),
        {length: 1.0 + sum(kept) / len(kept) for length, kept in walked.items()},
    )


def lengths(timed: Sequence[Timed], accepted: Mapping[str, Acceptance]) -> list[Length]:
    """Each drafter and length beside the laws; ``accepted`` by drafter, at the temperature the texts were timed at."""
    plain = _Plain(timed)
    groups: defaultdict[tuple[str, int], list[Timed]] = defaultdict(list)
    for one in timed:
        if one.length != PLAIN_LENGTH:
            groups[one.drafter, one.length].append(one)
    return [_length(accepted[drafter], length, found, plain) for (drafter, length), found in groups.items()]


def best(found: Sequence[Length]) -> list[Best]:
    """The best length of each drafter, by each prediction and as measured."""
    by_drafter: defaultdict[tuple[str, float], dict[int, Length]] = defaultdict(dict)
    for one in found:
        by_drafter[one.drafter, one.temperature][one.length] = one
    result = []
    for (drafter, temperature), rows in by_drafter.items():
        ways = next(iter(rows.values())).speed
        chosen = {way: theory.best_length({n: one.speed[way] for n, one in rows.items()}) for way in ways}
        brings = {way: rows[length].speed["measured"] if length else 1.0 for way, length in chosen.items()}
        result.append(Best(drafter, temperature, chosen, brings))
    return result


class _Plain:
    """Plain decoding of the texts in ``timed``, and what other passes cost in its own."""

    def __init__(self, timed: Sequence[Timed]) -> None:
        plain = [one for one in timed if one.length == PLAIN_LENGTH]
        self.seconds = {one.item: one.seconds for one in plain}
        self.pass_seconds = sum(self.seconds.values()) / sum(len(one.passes) for one in plain)
        found: defaultdict[int, list[float]] = defaultdict(list)
        for one in (one for text in timed for one in text.passes):
            found[one.drafted].append((one.seconds - one.draft_seconds) / self.pass_seconds)
        self._sizes = sorted(found)
        self._prices = [sum(found[size]) / len(found[size]) for size in self._sizes]

    def price(self, drafted: int) -> float:
        """The mean price of a pass that checks ``drafted`` guesses, without drafting, from all that were, whosever."""
        return float(np.interp(drafted, self._sizes, self._prices))


def _length(accepted: Acceptance, length: int, found: Sequence[Timed], plain: _Plain) -> Length:
    passes = [one for timed in found for one in timed.passes]
    c = sum(one.draft_seconds for one in passes) / len(passes) / length / plain.pass_seconds
    v = sum(plain.price(one.drafted) for one in passes) / len(passes)
    emitted = sum(one.tokens for one in passes) / len(passes)
    iid, walked = theory.tokens_per_step(accepted.agreed, length), accepted.tokens[length]
    measured = ratio([plain.seconds[one.item] for one in found], [one.seconds for one in found])
    rows = 1.0 + sum(one.drafted for one in passes) / len(passes)
    return Length(
        accepted.drafter,
        accepted.temperature,
        length,
        accepted.agreed,
        c,
        v,
        tokens={"paper": iid, "positions": walked, "measured": emitted},
        speed={
            "paper": theory.speed_up(iid, length, c),
            "priced": theory.speed_up(iid, length, c, v),
            "positions": theory.speed_up(walked, length, c, v),
            "measured": measured.value,
        },
        low=measured.low,
        high=measured.high,
        operations={"paper": theory.operations(iid, length, 0.0), "measured": rows / emitted},
        memory={"paper": theory.memory(iid), "measured": theory.memory(emitted)},
    )


def _repeats(hits: Sequence[Sequence[bool]]) -> float | None:
    after = [(now, later) for one in hits for now, later in pairwise(one)]
    kept = [later for now, later in after if now]
    other = [later for now, later in after if not now]
    if not kept or not any(other):
        return None
    return (sum(kept) / len(kept)) / (sum(other) / len(other))


def _interval(texts: Sequence[tuple[float, int]], samples: int = 2000) -> tuple[float, float]:
    """95 % interval of a mean over positions, texts resampled whole."""
    sums = np.asarray(texts, dtype=float)
    picks = np.random.default_rng(0).integers(0, len(sums), size=(samples, len(sums)))
    means = sums[picks, 0].sum(axis=1) / sums[picks, 1].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
