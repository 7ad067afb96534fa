"""What the audit of a server found: verdict, sentence and tables, with all that could not be told.

Knows findings and words. Does not know how anything was asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sooner.audit.parity import NEAR, PLACEHOLDER, SAME, Parity
from sooner.audit.report import (
    CODES,
    DIFFERENT,
    IDENTICAL,
    INCOMPLETE,
    NEAR_TIES,
    SCHEMA,
    VOID,
    Section,
    jsonable,
    tokens_text,
)
from sooner.audit.server import Compared, ServerFindings

__all__ = ["ServerReport"]

_PARITY = 1e-4
"""The largest difference of a log-probability that counts as the same number."""

_TOLERATED = 0.1
"""The share of requests that may fail before an audit is incomplete."""

_SHOWN = 6


@dataclass(slots=True)
class ServerReport:
    """``places``: the plain server and the one with speculation, maybe the same. ``switched``: the request itself says
    whether to speculate, and whether the user vouches for that (``vouched``)."""

    places: tuple[str, str]
    model: str
    command: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    prompts: int
    switched: bool
    vouched: bool
    findings: ServerFindings = field(default_factory=ServerFindings)
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """One of `report`'s; a difference stands whatever else went wrong."""
        found = self.findings
        if self._faults or any(test.rejected for test in found.tests):
            return DIFFERENT
        failed = len(found.failures) > _TOLERATED * max(1, len(found.texts))
        if not found.tokens or failed:
            return INCOMPLETE
        if self._doubts:
            return VOID
        if self._near or self._largest > _PARITY:
            return NEAR_TIES
        return IDENTICAL

    @property
    def exit_code(self) -> int:
        """0 nothing differs, 1 something does, 2 it could not be told."""
        return CODES[self.verdict]

    @property
    def sentence(self) -> str:
        """The verdict as one may quote it."""
        said = {
            DIFFERENT: self._different,
            INCOMPLETE: self._incomplete,
            VOID: lambda: f"void: no difference was seen in {self._amount}, but {'; '.join(self._doubts)}",
            NEAR_TIES: self._near_ties,
            IDENTICAL: self._identical,
        }
        where = " and ".join(dict.fromkeys(self.places))
        return f"{said[self.verdict]()} ({self.model} at {where}, sooner {self._version} asking)."

    # -- judgement ---------------------------------------------------------------------------------------------------

    @property
    def _faults(self) -> list[Compared]:
        """Differences that nothing excuses: greedy texts of a server that repeats itself, sampled ones where the server
        promises the same text, and log-probabilities that are none."""
        found, guilty = self.findings, []
        greedy = found.repeats(greedy=True) is not False
        sampled = found.coupled and found.repeats(greedy=False) is not False
        for one in found.texts:
            if one.parity is None or one.parity.kind == SAME:
                continue
            promised = greedy if one.temperature == 0 else sampled
            if one.parity.kind == PLACEHOLDER or (promised and one.parity.kind != NEAR):
                guilty.append(one)
        return guilty

    @property
    def _near(self) -> list[Compared]:
        return [one for one in self.findings.of(greedy=True) if one.parity and one.parity.kind == NEAR]

    @property
    def _parities(self) -> list[Parity]:
        return [one.parity for one in self.findings.texts if one.parity is not None]

    @property
    def _largest(self) -> float:
        return max((parity.largest for parity in self._parities), default=0.0)

    @property
    def _same_texts(self) -> bool:
        """Whether every sampled text was the same too."""
        return all(one.parity is not None and one.parity.kind == SAME for one in self.findings.of(greedy=False))

    @property
    def _doubts(self) -> list[str]:
        """Why that no difference was seen says nothing."""
        found, doubts = self.findings, []
        if found.drafted == 0:
            doubts.append("the server drafted nothing")
        if found.drafted_plain:
            doubts.append("the server speculated in the plain requests too: use two servers, or another --plain")
        if found.drafted is None and self.switched and not self.vouched:
            doubts.append("the server does not tell whether it speculates: use two servers, or --plain")
        if found.repeats(greedy=True) is False and not found.tests:
            doubts.append("the server does not repeat itself without speculation either")
        if not self._same_texts:
            missed = [control.name for control in found.controls if not control.caught]
            if not found.tests:
                doubts.append("sampled texts differ and no answers were counted (--draws)")
            elif missed:
                doubts.append(f"too few answers were counted to see {' and '.join(missed)}: raise --draws")
        return doubts

    # -- words -------------------------------------------------------------------------------------------------------

    @property
    def _amount(self) -> str:
        return f"{tokens_text(self.findings.tokens)} of {len(self._parities)} answers"

    @property
    def _version(self) -> str:
        return str(self.machine.get("versions", {}).get("sooner", "?"))

    def _different(self) -> str:
        rejected = [test for test in self.findings.tests if test.rejected]
        if not self._faults:
            names = ", ".join(f"{test.name} (p {test.p:.1g})" for test in rejected)
            return f"DIFFERENT: with speculation the answers have another distribution: {names}"
        one = self._faults[0]
        assert one.parity is not None
        if one.parity.kind == PLACEHOLDER:
            return "DIFFERENT: with speculation some log-probabilities are placeholders, not measurements"
        place = "" if one.parity.position is None else f" at token {one.parity.position + 1}"
        many = len(self._faults)
        return (
            f"DIFFERENT: {many} of {len(self._parities)} answers change with speculation; that of prompt "
            f"{one.prompt + 1}, seed {one.seed}, temperature {one.temperature:g} parts{place}"
        )

    def _incomplete(self) -> str:
        failures = self.findings.failures
        last = f": {failures[-1]}" if failures else ""
        return f"incomplete: {len(failures)} of {len(self.findings.texts)} requests brought no answer{last}"

    def _near_ties(self) -> str:
        return (
            f"equal up to rounding: in {self._amount}, {len(self._near)} greedy ones part at a near-tie; "
            f"log-probabilities differ by up to {self._largest:.2g}"
        )

    def _identical(self) -> str:
        bits = ""
        if compared := sum(parity.compared for parity in self._parities):
            equal = sum(parity.equal for parity in self._parities)
            bits = f", {equal:,} of {compared:,} log-probabilities bit for bit"
        if self._same_texts:
            return f"identical: {self._amount} are the same with and without speculation{bits}{self._counted()}"
        greedy = len(self.findings.of(greedy=True))
        return (
            f"consistent: {greedy} greedy answers are the same with and without speculation{bits}; sampled ones are "
            f"other texts, as rules that keep the distribution alone make them{self._counted()}"
        )

    def _counted(self) -> str:
        tests = self.findings.tests
        if not tests:
            return ""
        least = min(test.p for test in tests)
        return f"; no difference of distribution in {self.findings.samples} short answers each (least p {least:.2g})"

    # -- tables ------------------------------------------------------------------------------------------------------

    def sections(self) -> list[Section]:
        """The tables, most telling first."""
        found = [self._texts()]
        if parting := [one for one in self.findings.texts if one.parity and one.parity.kind != SAME]:
            found.append(self._where(parting))
        if self.findings.tests:
            found.append(self._tests())
        if self.findings.controls:
            found.append(self._controls())
        if self.notes:
            found.append(Section("What could not be audited", ("",), tuple((note,) for note in self.notes)))
        return found

    @property
    def notes(self) -> list[str]:
        """What the servers cannot do, or do not tell."""
        found, notes = self.findings, list(self.findings.notes)
        if found.repeats(greedy=True) is False:
            notes.append("the plain server does not repeat itself at temperature 0: its texts are no measure")
        if found.repeats(greedy=False) is False:
            notes.append("the plain server does not repeat itself with the same seed: sampled texts count as samples")
        if not found.logprobs:
            notes.append("there are no log-probabilities: texts were compared as characters")
        if found.drafted is None:
            notes.append("the server does not tell how much it drafted: if it never did, equal answers show nothing")
        if found.failures:
            notes.append(f"{len(found.failures)} requests brought no answer, the last: {found.failures[-1]}")
        return list(dict.fromkeys(notes))

    def _texts(self) -> Section:
        rows = []
        for temperature in dict.fromkeys(one.temperature for one in self.findings.texts):
            mine = [one for one in self.findings.texts if one.temperature == temperature]
            parities = [one.parity for one in mine if one.parity is not None]
            kinds = Counter(parity.kind for parity in parities)
            compared = sum(parity.compared for parity in parities)
            largest = max((parity.largest for parity in parities), default=0.0)
            rows.append(
                (
                    f"{temperature:g}",
                    str(len(parities)),
                    f"{sum(parity.units for parity in parities):,}",
                    ", ".join(f"{n} {kind}" for kind, n in kinds.items()),
                    f"{largest:.2g}" if compared else "-",
                    f"{sum(parity.equal for parity in parities):,} of {compared:,}" if compared else "-",
                )
            )
        columns = ("temperature", "answers", "tokens", "with speculation", "logprobs differ by", "bit for bit")
        return Section("Answers", columns, tuple(rows))

    def _where(self, parting: Sequence[Compared]) -> Section:
        rows = tuple(
            (
                f"prompt {one.prompt + 1}, seed {one.seed}, t {one.temperature:g}",
                "-" if one.parity.position is None else str(one.parity.position + 1),
                repr(one.parity.wanted),
                repr(one.parity.got),
                "-" if one.parity.margin is None else f"{one.parity.margin:.3g}",
                one.parity.kind,
            )
            for one in parting[:_SHOWN]
            if one.parity is not None
        )
        columns = ("answer", "token", "plain", "with speculation", "margin", "what")
        note = f"The first {_SHOWN} of {len(parting)}. Margin in nats, where the server gives log-probabilities."
        return Section("Where answers part", columns, rows, note)

    def _tests(self) -> Section:
        tests = self.findings.tests
        rows = tuple(
            (
                test.name,
                f"{self.findings.samples}" + (" (again)" if self.findings.repeated else ""),
                str(test.df),
                f"{test.p:.2g}" + (" !" if test.rejected else ""),
                f"{test.effect:.3f}",
                f"{test.power:.2f}",
                f"{test.visible:.2f}",
            )
            for test in tests
        )
        note = (
            f"Chi-square tests of two samples, significant below {tests[0].alpha:.2g} (Bonferroni); ! marks it. Power: "
            f"the chance to see a total variation of {tests[0].seen:g}; sees: the one seen in nine cases of ten."
        )
        return Section("Distribution", ("what", "answers", "df", "p", "effect", "power", "sees"), rows, note)

    def _controls(self) -> Section:
        controls = self.findings.controls
        rows = tuple((one.name, "caught" if one.caught else "MISSED", one.said) for one in controls)
        brief = f"negative controls: {sum(one.caught for one in controls)} of {len(controls)} caught"
        missed = ", ".join(one.name for one in controls if not one.caught)
        brief += f"; MISSED: {missed}" if missed else ""
        return Section("Negative controls", ("what is broken", "caught?", "how it showed"), rows, brief=brief)

    def facts(self) -> dict[str, str]:
        """What the verdict holds for."""
        found = self.findings
        drafted = "unknown" if found.drafted is None else f"{found.drafted:,}"
        return {
            "plain": f"{self.places[0]}" + (", told not to speculate" if self.switched else ""),
            "with speculation": self.places[1],
            "model": self.model,
            "drafted, as the server says": drafted,
            "settings": f"seed {self.settings['seed']}, {self.prompts} prompts, at most {self.settings['length']} "
            "tokens an answer",
            "took": f"{self.seconds:.0f} s, ended {self.machine.get('time', '')}",
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        told = {"verdict": self.verdict, "sentence": self.sentence, "exit_code": self.exit_code}
        return {
            "schema": SCHEMA,
            **told,
            "notes": self.notes,
            **{name: jsonable(getattr(self, name)) for name in self.__dataclass_fields__},
        }
