"""What the controller's runs come to, group by group, next to the limits they were asked to reach.

Knows samples. Does not know how they were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from controller_runs import CHAT, CODE

from sooner.bench import Ratio, ratio
from sooner.bench.runner import Sample
from sooner.bench.summary import Figures, paired, ratio_dict, summarise

__all__ = [
    "NEVER_SLOWER",
    "Limit",
    "Verdict",
    "as_record",
    "between",
    "grouped",
    "interval",
    "judge",
    "limits",
    "regroup",
    "table",
]

NEVER_SLOWER = 0.97
"""What the lower end of every category's interval must reach."""

_FEWEST = 4
"""Pairs below which an interval says nothing."""

_SPEED = {
    "overall": 2.0,
    "chat": 1.65,
    "qa": 2.2,
    "summarization": 1.8,
    "rag": 2.5,
    "translation": 2.4,
    "math_reasoning": 1.7,
    CODE: 2.5,
}


@dataclass(frozen=True, slots=True)
class Limit:
    """What the ``measure`` ("speed-up", "before loops", "lower end") of a group must reach."""

    group: str
    measure: str
    least: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A limit beside what was measured. ``reached``: None where there are too few pairs to say."""

    limit: Limit
    measured: float | None
    reached: bool | None

    def cells(self) -> list[str]:
        """One row of a table."""
        known = {None: "too few pairs", True: "reached", False: "NOT reached"}[self.reached]
        measured = "-" if self.measured is None else f"{self.measured:.2f}"
        return [self.limit.group, self.limit.measure, f"{self.limit.least:.2f}", measured, known]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self.limit), "measured": self.measured, "reached": self.reached}


def limits(temperature: float, batch: int) -> list[Limit]:
    """The limits of the default set at a temperature and a batch size, besides `NEVER_SLOWER` for every category."""
    if temperature > 0.0:
        return [Limit("overall", "speed-up", 1.15)] if batch == 1 else []
    if batch > 1:
        return [Limit("overall", "speed-up", 1.25)] if batch == 4 else []
    return [Limit("overall", "before loops", 1.6), *(Limit(name, "speed-up", least) for name, least in _SPEED.items())]


def judge(figures: Mapping[str, Figures], wanted: Sequence[Limit]) -> list[Verdict]:
    """Every limit of a group that was measured, then for every group that it is never slower."""
    every = [Limit(name, "lower end", NEVER_SLOWER) for name in figures]
    return [_verdict(figures[limit.group], limit) for limit in (*wanted, *every) if limit.group in figures]


def _verdict(found: Figures, limit: Limit) -> Verdict:
    measured = found.fresh if limit.measure == "before loops" else found.ratio
    if measured is None:
        return Verdict(limit, None, None)
    value = measured.low if limit.measure == "lower end" else measured.value
    enough = limit.measure != "lower end" or measured.pairs >= _FEWEST
    return Verdict(limit, value, value >= limit.least if enough else None)


def regroup(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Samples by category, then those of chat together, then all of Spec-Bench's (the code to rewrite is not)."""
    found = {name: [s for s in samples if s.category == name] for name in dict.fromkeys(s.category for s in samples)}
    chat = [name for name in found if name in CHAT]
    rest = [name for name in found if name != CODE]
    if len(chat) > 1:
        found["chat"] = [replace(s, category="chat") for s in samples if s.category in chat]
    if len(rest) > 1:
        found["overall"] = [replace(s, category="overall") for s in samples if s.category in rest]
    return found


def grouped(samples: Sequence[Sample]) -> dict[str, dict[str, Figures]]:
    """Per group, the figures of each configuration by name."""
    return {
        group: {one.configuration: replace(one, category=group) for one in summarise(chosen)}
        for group, chosen in regroup(samples).items()
    }


def between(
    samples: Sequence[Sample],
    base: str,
    other: str,
    seconds: Callable[[Sample], float] = lambda sample: sample.seconds,
) -> Ratio | None:
    """How many times as fast configuration ``other`` was as ``base``, pair by pair."""
    series = [[s for s in samples if s.configuration == name] for name in (base, other)]
    a, b = paired(series[0], series[1], seconds)
    return ratio(a, b) if a else None


def interval(found: Ratio | None) -> str:
    """A ratio and its interval, if there are pairs enough for one."""
    if found is None:
        return "-"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" if found.pairs >= _FEWEST else f"{found.value:.2f}"


def as_record(found: Ratio | None) -> dict[str, Any] | None:
    """A ratio as JSON."""
    return ratio_dict(found)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        first, *others = zip(row, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]))
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
