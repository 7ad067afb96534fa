"""Which sublayers of a model its drafts can do without: a resumable search by measured agreement and cost.

Knows sublayers by name, how often a shortened model agrees and what its pass costs. Does not know graphs or blocks.
(Skip sets over both halves of every layer: Draft & Verify, Zhang et al. 2309.08168; agreement in one parallel pass:
SWIFT, Xia et al. 2410.06916.)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sooner.draft.layerskip import format_skip

__all__ = ["DEEPEST", "Costs", "Found", "Search", "predicted"]

Skip = frozenset[str]
Score = tuple[int, int]
"""How many of how many tokens a shortened model foresaw."""

DEEPEST = 8
"""The longest draft that is considered."""

_STEPS = 16
"""Sets that are tried on the way from leaving out one sublayer to leaving out all."""

_HOPELESS = 0.95
"""Predicted speed-up below which small changes to a set are not worth trying."""

_PATIENCE = 48
"""Changes in a row that bring nothing, after which the search is over."""


@dataclass(frozen=True, slots=True)
class Costs:
    """In plain passes: ``whole`` is a pass over one row with nothing left out, of which each attention takes
    ``attention`` and each MLP ``mlp``; ``least`` is what remains without them. ``verify[k]`` is a pass that verifies k
    drafted tokens."""

    whole: float
    attention: float
    mlp: float
    least: float
    verify: tuple[float, ...]

    def draft(self, skip: Skip) -> float:
        """A draft pass without ``skip``."""
        halves = sum(name.endswith("a") for name in skip)
        return max(self.whole - halves * self.attention - (len(skip) - halves) * self.mlp, self.least)


@dataclass(frozen=True, slots=True)
class Found:
    """The best set: how often it agrees on texts the search did not see, what a draft pass costs in plain passes, and
    the speed-up this promises with drafts of ``depth`` tokens. ``tried`` sets; ``finished`` unless time ran out."""

    skip: Skip
    sublayers: int
    agreement: float
    cost: float
    depth: int
    speed_up: float
    tried: int
    finished: bool

    @property
    def text(self) -> str:
        """The set as ``kind=layerskip,skip=`` reads it; empty where nothing can be left out."""
        return format_skip(self.skip)


def predicted(agreement: float, cost: float, verify: Sequence[float]) -> tuple[float, int]:
    """The best speed-up over plain decoding and its draft length, if each drafted token is right with probability
    ``agreement`` (Leviathan et al. 2211.17192, section 3.3, with measured passes)."""
    best, depth, tokens, gain = 0.0, 1, 1.0, 1.0
    for k in range(1, len(verify)):
        gain *= agreement
        tokens += gain
        speed = tokens / (verify[k] + k * cost)
        if speed > best:
            best, depth = speed, k
    return best, depth


@dataclass(slots=True)
class Search:
    """Looks for the skip set of ``names`` (in order) that promises the largest speed-up.

    ``agree(skip, seen)`` measures a set, on the texts to search by or on the others. ``scores`` keeps what was
    measured, by the set's text; with the scores of an earlier search a new one goes on where that one ended.
    """

    names: Sequence[str]
    agree: Callable[[Skip, bool], Score]
    costs: Costs
    scores: dict[str, Score] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _best: Skip = frozenset()
    _speed: float = 0.0
    _finished: bool = False

    def run(self, seconds: float) -> Iterator[Skip]:
        """Yields each newly measured set; ends when nothing better is found, or after ``seconds`` of measuring."""
        end = self.clock() + seconds
        for skip in self._sets():
            if self._known(skip) is None:
                if self.clock() >= end:
                    return
                self.scores[format_skip(skip)] = self.agree(skip, True)
                yield skip
            self._weigh(skip)
        self._finished = True

    def found(self) -> Found:
        """The best set so far, weighed anew on texts that the search did not see."""
        hits, trials = self.agree(self._best, False)
        agreement, cost = hits / trials, self.costs.draft(self._best)
        speed, depth = predicted(agreement, cost, self.costs.verify)
        return Found(
            self._best, len(self.names), agreement, cost, depth, speed, len(self.scores), finished=self._finished
        )

    def _known(self, skip: Skip) -> Score | None:
        return self.scores.get(format_skip(skip))

    def _weigh(self, skip: Skip) -> float:
        hits, trials = self.scores[format_skip(skip)]
        speed, _ = predicted(hits / trials, self.costs.draft(skip), self.costs.verify)
        if skip and speed > self._speed:
            self._best, self._speed = skip, speed
        return speed

    def _sets(self) -> Iterator[Skip]:
        """Each sublayer alone, then the least missed ones together, ever more of them, then changes to the best set."""
        singles = [frozenset((name,)) for name in self.names if self._leaves_attention({name})]
        yield from singles
        order = sorted(singles, key=lambda skip: -self.scores[format_skip(skip)][0])
        size = 1
        while size < len(order):
            size = max(size + 1, size + len(order) // _STEPS)
            together = frozenset().union(*order[:size])
            if self._leaves_attention(together):
                yield together
        if self._speed >= _HOPELESS:
            yield from self._changes()

    def _changes(self) -> Iterator[Skip]:
        """The best set with one or two sublayers taken in, put back or exchanged, the same ones in every search."""
        dice, misses = random.Random(0), 0
        while misses < _PATIENCE:
            before = self._speed
            changed = set(self._best)
            for name in dice.sample(list(self.names), dice.choice((1, 1, 2))):
                changed ^= {name}
            if changed and self._leaves_attention(changed):
                yield frozenset(changed)
            misses = 0 if self._speed > before else misses + 1

    def _leaves_attention(self, skip: set[str] | Skip) -> bool:
        return any(name.endswith("a") and name not in skip for name in self.names)


def to_record(scores: Mapping[str, Score]) -> dict[str, list[int]]:
    """Scores for a JSON file."""
    return {text: list(score) for text, score in scores.items()}
