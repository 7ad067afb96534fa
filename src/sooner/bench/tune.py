"""Which configuration is fastest on a user's prompts: measured in turns until the answer is clear.

Knows configurations and samples. Does not know where prompts come from or where the answer is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sooner.bench.configuration import PLAIN, Configuration, parse_configuration
from sooner.bench.ratio import Ratio, ratio
from sooner.bench.runner import Runner, Sample
from sooner.bench.summary import ALL, Figures, paired, shown, summarise, verdict
from sooner.bench.workload import Item
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.loading import DEFAULT_DRAFT

__all__ = ["LEAST", "Choice", "candidates", "choose", "measure", "rounds"]

LEAST = 6
"""Prompts before which nothing is concluded."""

_CLOSE = 1.05
"""Configurations within 5 % of the leader are as good as it: measuring on would tell nobody anything."""

_CANDIDATES = (DEFAULT_DRAFT, "suffix", "recycle", "table", f"{DEFAULT_DRAFT}@4", f"{DEFAULT_DRAFT}@8", "suffix@8")


@dataclass(frozen=True, slots=True)
class Choice:
    """The configuration to use, why, its figures, and those of everything measured."""

    configuration: Configuration
    reason: str
    figures: tuple[Figures, ...]

    @property
    def ratio(self) -> Ratio | None:
        """The chosen one's speed-up over plain decoding."""
        return next((f.ratio for f in self.figures if f.configuration == self.configuration.name), None)


def candidates(engine: Engine) -> list[Configuration]:
    """Plain decoding, the default under the controller, its drafters alone, a few fixed budgets: what the model has."""
    found = [PLAIN]
    for configuration in map(parse_configuration, _CANDIDATES):
        try:
            configuration.equip(engine, engine.controller)
        except DraftError:  # no table is shipped for this model
            continue
        found.append(configuration)
    return found


def rounds(items: Sequence[Item]) -> int:
    """How often `measure` goes through the items at most: once, unless they are fewer than `LEAST`."""
    return -(-LEAST // len(items))


def measure(runner: Runner, items: Sequence[Item]) -> Iterator[Sample]:
    """Each item under every configuration still in the race; ends early when the answer is clear.

    Fewer items than `LEAST` are gone through again, by drafters that have forgotten them.
    """
    racing = list(runner.configurations)
    samples: list[Sample] = []
    for turn in range(rounds(items)):
        runner.warm_up()
        for item in items:
            for configuration in racing:
                sample = runner.run(configuration, (item,), turn)
                samples.append(sample)
                yield sample
            if len(_of(samples, racing[0])) >= LEAST:
                racing = _contenders(racing, samples)
                if _clear(racing, samples):
                    return


def choose(configurations: Sequence[Configuration], samples: Sequence[Sample]) -> Choice | None:
    """The answer that the samples support; None if no configuration has run enough prompts.

    The default is preferred to what is not shown to be faster than it, and plain decoding to what is not shown to be
    faster than that. A configuration whose texts differ from the plain ones is never chosen.
    """
    figures = tuple(one for one in summarise(samples) if one.category == ALL)
    differing = {one.configuration for one in figures if one.differing}
    able = [c for c in configurations if c.name not in differing and len(_of(samples, c)) >= LEAST]
    drafting = [c for c in able if not c.plain]
    if len(able) == len(drafting) or not drafting:
        return None
    leader = _leader(drafting, samples)
    default = next((c for c in drafting if c.draft == (DEFAULT_DRAFT,) and c.budget is None), None)
    if default is not None and default != leader and not _shown(default, leader, samples):
        leader = default
    best = next(one for one in figures if one.configuration == leader.name)
    if best.ratio is not None and shown(best.ratio) and best.ratio.value > 1.0:
        return Choice(leader, f"it is {best.ratio} as fast as plain decoding", figures)
    why = (
        f"the best drafter, {leader.name}, gives {best.acceptance_length:.2f} tokens a pass here and its passes take "
        f"{best.pass_ms:.1f} ms, so that it needs {best.break_even:.2f} to break even ({verdict(best.ratio)})"
    )
    return Choice(next(c for c in able if c.plain), why, figures)


def _of(samples: Sequence[Sample], configuration: Configuration) -> list[Sample]:
    return [sample for sample in samples if sample.configuration == configuration.name]


def _versus(slow: Configuration, fast: Configuration, samples: Sequence[Sample]) -> Ratio | None:
    """How many times as fast ``fast`` is, over what both have run."""
    a, b = paired(_of(samples, slow), _of(samples, fast), lambda sample: sample.seconds)
    return ratio(a, b) if a else None


def _shown(slow: Configuration, fast: Configuration, samples: Sequence[Sample]) -> bool:
    found = _versus(slow, fast, samples)
    return found is not None and found.low > 1.0


def _leader(racing: Sequence[Configuration], samples: Sequence[Sample]) -> Configuration:
    """The fastest over all that has been run: whoever ran longest ran everything, so only those can lead."""
    most = max(len(_of(samples, c)) for c in racing)
    full = [c for c in racing if len(_of(samples, c)) == most]
    return min(full, key=lambda c: sum(sample.seconds for sample in _of(samples, c)))


def _contenders(racing: Sequence[Configuration], samples: Sequence[Sample]) -> list[Configuration]:
    """Plain decoding, the leader, and whatever is not shown to be slower than it by more than a trifle."""
    leader = _leader(racing, samples)
    kept = []
    for one in racing:
        found = _versus(one, leader, samples)
        if one.plain or one == leader or found is None or found.low <= 1.02:
            kept.append(one)
    return kept


def _clear(racing: Sequence[Configuration], samples: Sequence[Sample]) -> bool:
    """Whether all that still race are as good as the leader; plain decoding may be shown to be slower."""
    leader = _leader(racing, samples)
    for one in racing:
        found = _versus(one, leader, samples)
        close = found is None or found.high < _CLOSE
        if one != leader and not close and not (one.plain and found is not None and found.low > 1.0):
            return False
    return True
