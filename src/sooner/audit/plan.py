"""What an audit runs: settings, and from them the units of work, each small enough to be lost.

Knows counts and combinations. Does not know models, texts or results.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["QUICK", "Settings", "Unit", "audit_key", "planned_tokens", "rounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``tokens``: the drafted tokens to compare, all drafters together. ``length``: the most tokens of one text.
    ``budgets``: draft tokens per pass, None where the controller decides. ``drafters``: short forms, as in
    `bench.configuration`. ``rules``: the ratio rules whose law is tested with ``draws`` texts each. ``fault``: what is
    broken on purpose ("" for nothing)."""

    tokens: int = 100_000
    length: int = 64
    temperatures: tuple[float, ...] = (0.0, 0.8, 1.0)
    batches: tuple[int, ...] = (1, 4)
    budgets: tuple[int | None, ...] = (1, 4, 12, None)
    drafters: tuple[str, ...] = ()
    seed: int = 0
    rules: tuple[str, ...] = ("rejection", "block")
    draws: int = 20_000
    fault: str = ""

    @property
    def group(self) -> int:
        """Texts of one unit."""
        return max(self.batches)


QUICK = Settings(tokens=5_000, length=24, temperatures=(0.0, 0.8), draws=2_000)
"""About two minutes with the default model on two cores."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One group of prompts at one temperature under one drafter ("" for the plain texts that all are compared with).

    ``batch``: texts side by side. ``cold``: the prompts are read anew, else what the prefix cache holds is used.
    ``preempted``: all texts are thrown out of the cache once in mid-text.
    """

    round: int
    temperature: float
    drafter: str = ""
    batch: int = 1
    budget: int | None = 0
    cold: bool = True
    preempted: bool = False

    @property
    def key(self) -> str:
        """The unit's name in the state file."""
        return json.dumps([self.round, self.temperature, self.drafter])

    def cases(self, settings: Settings, prompts: int) -> list[tuple[int, int]]:
        """Its texts: number of the prompt, and the seed."""
        first = self.round * settings.group
        return [((first + i) % prompts, settings.seed + first + i) for i in range(settings.group)]


def rounds(settings: Settings) -> Iterator[list[Unit]]:
    """Endless rounds: at each temperature the plain texts, then the same texts under every drafter.

    Batch, budget, cache and preemption change from unit to unit so that over the rounds every drafter meets all
    combinations.
    """
    ways = list(itertools.product(settings.batches, settings.budgets, (True, False)))
    for number in itertools.count():
        units = []
        for i, temperature in enumerate(settings.temperatures):
            units.append(Unit(number, temperature))
            for j, drafter in enumerate(settings.drafters):
                turn = number * len(settings.temperatures) + i + 5 * j
                batch, budget, cold = ways[turn % len(ways)]
                batch = settings.group if drafter == "plain" else batch
                units.append(Unit(number, temperature, drafter, batch, budget, cold, preempted=turn % 4 == 3))
        yield units


def planned_tokens(settings: Settings) -> int:
    """The drafted tokens of whole rounds, if every text has its full length."""
    once = len(settings.drafters) * len(settings.temperatures) * settings.group * settings.length
    return -(-settings.tokens // max(1, once)) * once


def audit_key(settings: Settings, prompts: Sequence[Any], subject: Mapping[str, Any]) -> str:
    """Equal for audits whose units mean the same: settings, prompts, and what the texts depend on."""
    facts = json.dumps([asdict(settings), list(prompts), dict(subject)], sort_keys=True, default=str)
    return hashlib.sha256(facts.encode(errors="surrogatepass")).hexdigest()[:24]
