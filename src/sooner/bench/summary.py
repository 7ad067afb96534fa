"""What samples come to: speed-ups by category and overall, acceptance, the share of time that drafting takes.

Knows samples. Does not know how they were taken or how they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sooner.bench.ratio import Ratio, ratio
from sooner.bench.runner import Sample

__all__ = ["ALL", "Figures", "differing", "paired", "ratio_dict", "shown", "summarise", "verdict"]

ALL = "all"
"""The category of everything together."""

_ENOUGH = 4
"""Pairs below which a bootstrap interval says nothing."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One configuration in one category, against the first configuration.

    ``ratio``: how many times as fast over all tokens; ``fresh``: over those before a text falls into a loop; None for
    the first configuration, where texts differ (``differing`` counts them), or where nothing was decoded.
    ``pass_ms``: mean time of a decoding pass per text. ``break_even``: the acceptance length at which this
    configuration is as fast as the first.
    """

    configuration: str
    category: str
    texts: int
    tokens: int
    fresh_tokens: int
    tokens_per_second: float
    acceptance_length: float
    acceptance_rate: float
    draft_share: float
    pass_ms: float
    break_even: float
    differing: int
    ratio: Ratio | None = None
    fresh: Ratio | None = None

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON."""
        record = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**record, "ratio": ratio_dict(self.ratio), "fresh": ratio_dict(self.fresh)}


def summarise(samples: Sequence[Sample]) -> list[Figures]:
    """Figures by category in order of appearance, then over everything; within each by configuration.

    The first sample's configuration is what the others are compared with.
    """
    categories = list(dict.fromkeys(sample.category for sample in samples))
    names = list(dict.fromkeys(sample.configuration for sample in samples))
    found = []
    for category in [*categories, ALL] if len(categories) > 1 else [ALL]:
        of = {name: [s for s in samples if s.configuration == name and category in (s.category, ALL)] for name in names}
        found += [_figures(category, of[names[0]], of[name]) for name in names if of[name]]
    return found


def differing(base: Sequence[Sample], other: Sequence[Sample]) -> list[str]:
    """The ids of items whose text is not the same in both, each once."""
    want: dict[tuple[str, str], tuple[int, ...]] = {}
    bad: dict[str, None] = {}
    for sample in (*base, *other):
        for item, tokens in zip(sample.items, sample.tokens, strict=True):
            if want.setdefault((sample.category, item), tokens) != tokens:
                bad[item] = None
    return list(bad)


def paired(
    base: Sequence[Sample], other: Sequence[Sample], seconds: Callable[[Sample], float]
) -> tuple[list[float], list[float]]:
    """Seconds of what both have run, pair by pair.

    A pair is one group, its rounds added up, since rounds of one prompt say nothing about other prompts; with fewer
    than four groups each round is a pair.
    """
    own = {sample.key: sample for sample in other}
    common = [(sample, own[sample.key]) for sample in base if sample.key in own]
    pairs = [(s.key, seconds(s), seconds(o)) for s, o in common]
    pairs = [(key, a, b) for key, a, b in pairs if a > 0.0 and b > 0.0]
    groups: dict[Any, list[float]] = {}
    for (category, items, _), a, b in pairs:
        total = groups.setdefault((category, items), [0.0, 0.0])
        total[0] += a
        total[1] += b
    chosen = list(groups.values()) if len(groups) >= _ENOUGH else [[a, b] for _, a, b in pairs]
    return [a for a, _ in chosen], [b for _, b in chosen]


def shown(found: Ratio | None) -> bool:
    """Whether a difference is shown: the interval excludes 1, and there are pairs enough for an interval."""
    return found is not None and found.shown and found.pairs >= _ENOUGH


def verdict(found: Ratio | None) -> str:
    """A ratio in few words: with its interval where it shows a difference, else that it shows none."""
    if found is None:
        return "-"
    if found.pairs < _ENOUGH:
        return "too few pairs"
    return str(found) if found.shown else "no difference shown"


def ratio_dict(found: Ratio | None) -> dict[str, Any] | None:
    """A ratio as JSON; ``difference_shown`` as `shown` says."""
    if found is None:
        return None
    return {
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "pairs": found.pairs,
        "difference_shown": shown(found),
    }


def _figures(category: str, base: Sequence[Sample], own: Sequence[Sample]) -> Figures:
    bad = differing(base, own)
    compared = base is not own and not bad
    seconds = sum(s.seconds for s in own)
    pass_ms, base_ms = _per_step(own), _per_step(base)
    drafted = sum(s.drafted for s in own)
    whole = sum(s.pass_ms for s in own)
    return Figures(
        configuration=own[0].configuration,
        category=category,
        texts=sum(len(s.items) for s in own),
        tokens=sum(s.counted for s in own),
        fresh_tokens=sum(s.fresh_tokens for s in own),
        tokens_per_second=sum(s.counted for s in own) / seconds if seconds else 0.0,
        acceptance_length=_length(own),
        acceptance_rate=sum(s.accepted for s in own) / drafted if drafted else 0.0,
        draft_share=sum(s.draft_ms for s in own) / whole if whole else 0.0,
        pass_ms=pass_ms,
        break_even=pass_ms / base_ms * _length(base) if base_ms else 0.0,
        differing=len(bad),
        ratio=_ratio(base, own, lambda s: s.seconds) if compared else None,
        fresh=_ratio(base, own, lambda s: s.fresh_seconds) if compared else None,
    )


def _length(samples: Sequence[Sample]) -> float:
    steps = sum(s.steps for s in samples)
    return sum(s.step_tokens for s in samples) / steps if steps else 1.0


def _per_step(samples: Sequence[Sample]) -> float:
    steps = sum(s.steps for s in samples)
    return 1e3 * sum(s.seconds for s in samples) / steps if steps else 0.0


def _ratio(base: Sequence[Sample], own: Sequence[Sample], seconds: Callable[[Sample], float]) -> Ratio | None:
    a, b = paired(base, own, seconds)
    return ratio(a, b) if a else None
