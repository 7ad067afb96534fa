"""The audit of a model on this machine: controls, texts and laws in order, each kept as it ends, into one report.

Knows the order of things and what work is left. Does not know options, terminals or files of results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import takewhile
from typing import Any

from sooner.audit.controls import FAULTS, BrokenTarget
from sooner.audit.difference import FAULT, row_spread
from sooner.audit.drafters import Drafters
from sooner.audit.journal import Journal
from sooner.audit.law import (
    SAMPLED_CONTROL,
    SHAPES,
    Draws,
    ExactLaw,
    RememberedRows,
    RuleFinding,
    check_rule,
    exact_laws,
)
from sooner.audit.plan import Settings, Unit, planned_tokens, rounds
from sooner.audit.report import Control, Report
from sooner.audit.statistics import CountTest
from sooner.audit.text import TextAudit
from sooner.engine import Engine
from sooner.prompt import Prompt

__all__ = ["ModelAudit"]

Told = Callable[[int, str], None]

_BROKEN = {
    "last-place": "rows off by one unit in the last place",
    "row-counts": "rows that depend on the pass",
    "swapped-rows": "rows of a draft swapped",
}
"""What the report calls the faults."""

_DRAWN = 10
"""Texts drawn for a law in the time of a token."""

_TESTS = 3
"""Statistical tests of one rule with drafts of one shape."""


class ModelAudit:
    """Audits ``engine``. ``told`` is called with the work done so far, of `work`, and a word on what is being done.

    Killed at any point, another one with the same arguments and journal goes on behind the last finished unit.
    """

    def __init__(
        self, engine: Engine, settings: Settings, prompts: Sequence[Prompt], drafters: Drafters, journal: Journal
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._prompts = prompts
        self._drafters = drafters
        self._journal = journal
        self._done = 0

    @property
    def work(self) -> int:
        """All there is to do, in tokens: those compared, and one for so many texts drawn as take as long."""
        return planned_tokens(self._settings) + self._drawing * len(self._laws)

    @property
    def _drawing(self) -> int:
        """The work of one rule's texts."""
        return -(-self._settings.draws // _DRAWN)

    @property
    def left(self) -> int:
        """What of it no state file holds."""
        settings, kept = self._settings, 0
        for units in takewhile(lambda units: self._journal.get(units[0].key) is not None, rounds(settings)):
            kept += sum(settings.group * settings.length for u in units if u.drafter and self._journal.get(u.key))
        kept += sum(self._drawing for law in self._laws if self._journal.get(_key(*law)) is not None)
        return max(0, self.work - kept)

    def run(self, report: Report, told: Told) -> Report:
        """Fill ``report`` in. Raises what the target raises."""
        self._told = told
        if not self._settings.fault:
            report.controls += self._broken_targets()
        report.spread = self._kept("spread", self._spread)
        self._texts(report)
        self._rules(report)
        return report

    # -- texts -------------------------------------------------------------------------------------------------------

    def _broken_targets(self) -> list[Control]:
        """Targets that are broken on purpose, audited in the same way: each must be caught."""
        sound = self._engine.target
        found = []
        try:
            for name, fault in FAULTS.items():
                self._tell(f"negative control: {name}")
                self._engine.target = BrokenTarget(sound, fault)
                caught = self._kept(f"control {name}", partial(self._caught, name))
                found.append(Control(**caught))
        finally:
            self._engine.target = sound
        return found

    def _caught(self, name: str) -> dict[str, Any]:
        settings = Settings(length=16, temperatures=(0.0, 0.8), batches=(1,), drafters=("oracle",), fault=name)
        audit = TextAudit(self._engine, settings, self._prompts, self._drafters, Journal())
        for temperature in settings.temperatures:
            audit.run(Unit(1, temperature))
            audit.run(Unit(1, temperature, "oracle", budget=4))
        finding = audit.findings["oracle"]
        kinds = {difference.kind for difference in finding.differences}
        caught = FAULT in kinds if name == "swapped-rows" else bool(finding.different)
        said = ", ".join(sorted(kinds)) or "no difference"
        return asdict(Control(_BROKEN.get(name, name), caught, said))

    def _texts(self, report: Report) -> None:
        settings = self._settings
        audit = TextAudit(self._engine, settings, self._prompts, self._drafters, self._journal)
        report.drafters = list(audit.findings.values())
        for units in rounds(settings):
            for unit in units:
                self._tell(f"{unit.drafter or 'plain'} at temperature {unit.temperature:g}")
                audit.run(unit)
                self._done += settings.group * settings.length if unit.drafter else 0
            enough = audit.tokens >= settings.tokens or units[0].round + 1 >= 2 * _rounds(settings)
            if enough or all(finding.failure for finding in report.drafters):
                return
            self._done = min(self._done, planned_tokens(settings))

    def _spread(self) -> float:
        """The largest difference of any logit between row counts, over a few contexts."""
        engine = self._engine
        texts = [engine.request(prompt).prompt for prompt in self._prompts[:3]]
        return max(row_spread(engine.target, text) for text in texts)

    # -- laws --------------------------------------------------------------------------------------------------------

    @property
    def _laws(self) -> list[tuple[str, str]]:
        rules = self._settings.rules
        if not rules or self._settings.fault:
            return []
        return [*((rule, shape) for rule in rules for shape in SHAPES), SAMPLED_CONTROL]

    def _rules(self, report: Report) -> None:
        if not self._laws:
            return
        self._tell("laws, by enumeration")
        exact = self._kept("exact", lambda: [asdict(law) for law in exact_laws(self._settings.rules)])
        report.exact = [ExactLaw(**record) for record in exact]
        report.controls += [
            Control(f"the rule {law.rule}, enumerated", law.as_it_should_be, f"total variation {law.distance:.2g}")
            for law in report.exact
            if law.biased
        ]
        prompt = self._engine.request(self._prompts[0]).prompt
        rows = RememberedRows(self._engine.target, prompt)
        try:
            draws = Draws(rows)
            for rule, shape in self._laws:
                finding = self._rule(draws, rule, shape)
                if finding.biased:
                    least = min(test.p for test in finding.tests)
                    said = f"p {least:.1g} in {finding.draws:,} texts"
                    report.controls.append(Control(f"the rule {rule}, sampled", finding.as_it_should_be, said))
                else:
                    report.rules.append(finding)
        finally:
            rows.close()

    def _rule(self, draws: Draws, rule: str, shape: str) -> RuleFinding:
        settings, before = self._settings, self._done
        self._tell(f"{rule}, {shape}")

        def drawn() -> None:
            self._done = min(self._done + 100 // _DRAWN, before + self._drawing)
            self._tell(f"{rule}, {shape}")

        def sample() -> dict[str, Any]:
            among = _TESTS * (len(self._laws) - 1)
            found = check_rule(
                draws, rule, shape, count=settings.draws, seed=settings.seed, among=among, progress=drawn
            )
            return asdict(found)

        record = self._kept(_key(rule, shape), sample)
        self._done = before + self._drawing
        return RuleFinding(**{**record, "tests": tuple(CountTest(**test) for test in record["tests"])})

    # -- both --------------------------------------------------------------------------------------------------------

    def _kept(self, key: str, make: Callable[[], Any]) -> Any:
        found = self._journal.get(key)
        if found is None:
            found = make()
            self._journal.keep(key, found)
        return found

    def _tell(self, word: str) -> None:
        self._told(self._done, word)


def _key(rule: str, shape: str) -> str:
    return f"law {rule} {shape}"


def _rounds(settings: Settings) -> int:
    once = len(settings.drafters) * len(settings.temperatures) * settings.group * settings.length
    return max(1, planned_tokens(settings) // max(1, once))
