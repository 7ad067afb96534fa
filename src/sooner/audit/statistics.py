"""Chi-square and G tests of counts: against exact probabilities, and of two samples, with effect size and power.

Knows counts and distributions. Does not know tokens, rules or models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Cells", "CountTest", "chi_square_tail", "goodness", "homogeneity", "power"]

_LEAST = 5.0
"""The least count that a cell must be expected to hold (Cochran 1954); smaller ones are pooled."""

Cells: TypeAlias = "Mapping[Any, float]"


@dataclass(frozen=True, slots=True)
class CountTest:
    """One test of one hypothesis. ``chi2`` and ``g``: Pearson's and the likelihood ratio's statistic on ``df`` degrees
    of freedom; ``p``: the chance of a larger ``chi2`` if nothing is wrong. ``n``: observations. ``effect``: Cohen's w,
    the root of chi2 / n, less what chance alone gives; half of it is a lower bound of the total variation that would
    explain it. ``power``: the chance that a total variation of ``seen`` would have been noticed at level ``alpha``;
    ``visible``: the total variation that would have been noticed in nine cases of ten.
    """

    name: str
    n: int
    df: int
    chi2: float
    g: float
    p: float
    effect: float
    power: float
    alpha: float
    seen: float
    visible: float

    @property
    def rejected(self) -> bool:
        """Whether the difference is more than chance at level ``alpha``."""
        return self.p < self.alpha


@dataclass(frozen=True, slots=True)
class _Sums:
    chi2: float
    g: float
    df: int
    n: int


def goodness(
    name: str, groups: Sequence[tuple[Cells, Cells]], *, alpha: float, seen: float = 0.05, among: int = 1
) -> CountTest:
    """Counts against exact probabilities, group by group (contexts), added up.

    ``groups``: pairs of counts and probabilities over the same cells. Cells expected to hold fewer than five are pooled
    within their group; a group that has but one cell then says nothing. ``among``: tests that share ``alpha``
    (Bonferroni).
    """
    return _test(name, [_against(counts, law) for counts, law in groups], alpha / among, seen)


def homogeneity(
    name: str, first: Cells, second: Cells, *, alpha: float, seen: float = 0.1, among: int = 1
) -> CountTest:
    """Whether two samples of counts come from one distribution. Arguments as for `goodness`.

    ``n`` is the effective size ``2 n1 n2 / (n1 + n2)``, so that ``effect`` and ``power`` read as for `goodness`.
    """
    return _test(name, [_two_samples(first, second)], alpha / among, seen)


def _test(name: str, sums: Sequence[_Sums], alpha: float, seen: float) -> CountTest:
    useful = [one for one in sums if one.df]
    chi2, g = sum(one.chi2 for one in useful), sum(one.g for one in useful)
    df, n = sum(one.df for one in useful), sum(one.n for one in useful)
    return CountTest(
        name=name,
        n=n,
        df=df,
        chi2=chi2,
        g=g,
        p=chi_square_tail(chi2, df) if df else 1.0,
        effect=math.sqrt(max(0.0, chi2 - df) / n) if n else 0.0,
        power=power(n, df, 2.0 * seen, alpha) if df else 0.0,
        alpha=alpha,
        seen=seen,
        visible=_visible(n, df, alpha) if df else 1.0,
    )


def _against(counts: Cells, law: Cells) -> _Sums:
    n = sum(counts.values())
    if not n:
        return _Sums(0.0, 0.0, 0, 0)
    pairs = [(counts.get(cell, 0.0), n * chance) for cell, chance in law.items() if chance > 0]
    stray = n - sum(count for count, _ in pairs)
    if stray:  # what the law holds impossible has happened: no sample is large enough to excuse it
        return _Sums(math.inf, math.inf, 1, int(n))
    pooled = _pooled([(expected, count, expected) for count, expected in pairs])
    chi2 = sum((count - expected) ** 2 / expected for count, expected in pooled)
    g = 2.0 * sum(count * math.log(count / expected) for count, expected in pooled if count)
    return _Sums(chi2, g, max(0, len(pooled) - 1), int(n))


def _two_samples(first: Cells, second: Cells) -> _Sums:
    n1, n2 = sum(first.values()), sum(second.values())
    if not n1 or not n2:
        return _Sums(0.0, 0.0, 0, 0)
    cells = dict.fromkeys([*first, *second])
    smaller = min(n1, n2) / (n1 + n2)
    rows = [(first.get(c, 0.0) + second.get(c, 0.0), first.get(c, 0.0), second.get(c, 0.0)) for c in cells]
    pooled = _pooled([(total * smaller, a, b) for total, a, b in rows])
    chi2 = g = 0.0
    for a, b in pooled:
        for count, size in ((a, n1), (b, n2)):
            expected = (a + b) * size / (n1 + n2)
            chi2 += (count - expected) ** 2 / expected
            g += 2.0 * count * math.log(count / expected) if count else 0.0
    return _Sums(chi2, g, max(0, len(pooled) - 1), int(2 * n1 * n2 / (n1 + n2)))


def _pooled(cells: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """Pairs of the cells whose first number is large enough, and the sum of the others, joined to the smallest if
    it is still too small."""
    ordered = sorted(cells, key=lambda cell: -cell[0])
    large = [cell for cell in ordered if cell[0] >= _LEAST]
    rest = [cell for cell in ordered if cell[0] < _LEAST]
    if rest:
        joined = (sum(c[0] for c in rest), sum(c[1] for c in rest), sum(c[2] for c in rest))
        if joined[0] < _LEAST and large:
            last = large.pop()
            joined = (last[0] + joined[0], last[1] + joined[1], last[2] + joined[2])
        large.append(joined)
    return [(a, b) for _, a, b in large]


def chi_square_tail(x: float, df: float) -> float:
    """The chance that a chi-square variable with ``df`` degrees of freedom exceeds ``x``."""
    if x <= 0:
        return 1.0
    if math.isinf(x):
        return 0.0
    return _upper_gamma(df / 2.0, x / 2.0)


def power(n: int, df: int, effect: float, alpha: float) -> float:
    """The chance that a chi-square test at level ``alpha`` sees an effect of Cohen's w = ``effect`` in ``n``
    observations: the tail of the non-central chi-square, a Poisson mixture of central ones."""
    half = n * effect * effect / 2.0
    critical = _critical(df, alpha)
    total, weight_sum = 0.0, 0.0
    spread = int(10 * math.sqrt(half) + 20)
    for j in range(max(0, int(half) - spread), int(half) + spread):
        weight = math.exp(-half + j * math.log(half) - math.lgamma(j + 1)) if half else float(j == 0)
        total += weight * chi_square_tail(critical, df + 2 * j)
        weight_sum += weight
    return total / weight_sum if weight_sum else 0.0


def _visible(n: int, df: int, alpha: float) -> float:
    """The total variation whose least effect, w = twice that, is noticed with a power of 0.9, to three digits."""
    low, high = 0.0, 1.0
    while high - low > 0.0005:
        middle = (low + high) / 2.0
        low, high = (low, middle) if power(n, df, 2.0 * middle, alpha) >= 0.9 else (middle, high)
    return high


def _critical(df: float, alpha: float) -> float:
    """The value that a chi-square variable exceeds with probability ``alpha``, by bisection."""
    low, high = 0.0, df + 10.0
    while chi_square_tail(high, df) > alpha:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if chi_square_tail(middle, df) > alpha else (low, middle)
    return high


def _upper_gamma(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x) (Abramowitz and Stegun 6.5.29 and 6.5.31)."""
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1.0:
        term = total = 1.0 / a
        n = a
        while abs(term) > abs(total) * 1e-16:
            n += 1.0
            term *= x / n
            total += term
        return max(0.0, 1.0 - scale * total)
    tiny = 1e-300  # Lentz's algorithm for the continued fraction
    b = x + 1.0 - a
    c, d = 1.0 / tiny, 1.0 / b
    h = d
    for i in range(1, 10_000):
        an = -i * (i - a)
        b += 2.0
        d = 1.0 / (an * d + b or tiny)
        c = b + an / c or tiny
        h *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return scale * h
