"""What an audit found: one verdict, one sentence to quote, tables, and JSON; for terminals, files and pages alike.

Knows findings and words. Does not know how anything was found or where it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from sooner.audit.difference import FAULT, NEAR_TIE, Difference
from sooner.audit.law import ExactLaw, RuleFinding
from sooner.audit.text import DrafterFinding

__all__ = [
    "CODES",
    "DIFFERENT",
    "IDENTICAL",
    "INCOMPLETE",
    "NEAR_TIES",
    "SCHEMA",
    "VOID",
    "Control",
    "Report",
    "Section",
    "jsonable",
    "tokens_text",
]

SCHEMA = 1

IDENTICAL, NEAR_TIES, DIFFERENT, VOID, INCOMPLETE = "identical", "near-ties", "different", "void", "incomplete"
"""Nothing differs; only what rounding explains does; something else does; the controls were not caught, so nothing is
shown; a part could not run."""

CODES = {IDENTICAL: 0, NEAR_TIES: 1, DIFFERENT: 1, VOID: 2, INCOMPLETE: 2}
"""Exit codes by verdict."""


@dataclass(frozen=True, slots=True)
class Control:
    """Something that is broken on purpose, whether the audit caught it, and how it showed."""

    name: str
    caught: bool
    said: str


@dataclass(frozen=True, slots=True)
class Section:
    """A table. ``brief``: a line that says the same where there is little room. ``note``: how to read it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    brief: str = ""


@dataclass(slots=True)
class Report:
    """The audit of a model. ``spread``: the largest difference of any logit between row counts. ``refused``: drafters
    that the model cannot have, and why. ``command`` repeats it. ``machine``: the stamp of every kept result."""

    model: str
    command: str
    fingerprint: Mapping[str, str]
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    prompts: int
    drafters: list[DrafterFinding] = field(default_factory=list)
    spread: float = 0.0
    exact: list[ExactLaw] = field(default_factory=list)
    rules: list[RuleFinding] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    refused: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Drafted tokens compared."""
        return sum(finding.tokens for finding in self.drafters)

    @property
    def differences(self) -> list[Difference]:
        """Those looked into, of all drafters."""
        return [difference for finding in self.drafters for difference in finding.differences]

    @property
    def verdict(self) -> str:
        """`IDENTICAL`, `NEAR_TIES`, `DIFFERENT`, `VOID` or `INCOMPLETE`; a difference that was found stands whatever
        else went wrong."""
        if self._unlawful or any(difference.kind == FAULT for difference in self.differences):
            return DIFFERENT
        if any(finding.different for finding in self.drafters):
            return NEAR_TIES
        if not all(control.caught for control in self.controls):
            return VOID
        if any(finding.failure for finding in self.drafters) or not self.tokens:
            return INCOMPLETE
        return IDENTICAL

    @property
    def exit_code(self) -> int:
        """0 nothing differs, 1 something does, 2 it could not be told."""
        return CODES[self.verdict]

    @property
    def sentence(self) -> str:
        """The verdict as one may quote it."""
        said = {
            IDENTICAL: self._identical,
            NEAR_TIES: self._near_ties,
            DIFFERENT: self._different,
            VOID: self._void,
            INCOMPLETE: self._incomplete,
        }
        return said[self.verdict]() + self._here()

    def _identical(self) -> str:
        names = [finding for finding in self.drafters if finding.name != "plain"]
        laws = ""
        if self.rules:
            least = min(test.p for rule in self.rules for test in rule.tests)
            rules = " and ".join(dict.fromkeys(rule.rule for rule in self.rules))
            laws = f"; {rules} keep the model's distribution ({self.rules[0].draws:,} texts each, least p {least:.2g})"
        many = "1 drafter" if len(names) == 1 else f"{len(names)} drafters"
        return (
            f"identical: {tokens_text(self.tokens)} under {many}, at {self._settings()}, are the plain text to the "
            f"last bit of every logit{laws}"
        )

    def _near_ties(self) -> str:
        texts = sum(finding.different for finding in self.drafters)
        ties = sum(difference.kind == NEAR_TIE for difference in self.differences)
        return (
            f"equal up to rounding: {texts} of {sum(f.texts for f in self.drafters)} texts "
            f"({tokens_text(self.tokens)}) are not the plain ones to the last bit, {ties} of the "
            f"{len(self.differences)} looked into with another token; row counts change logits by up to "
            f"{max([self.spread, *(d.spread for d in self.differences)]):.3g}"
        )

    def _different(self) -> str:
        faults = [difference for difference in self.differences if difference.kind == FAULT]
        if faults:
            first = faults[0]
            return (
                f"DIFFERENT: with {first.drafter} at temperature {first.temperature:g} the text of prompt "
                f"{first.prompt + 1} parts from the plain one at token {first.position + 1}: {first.why}"
            )
        return f"DIFFERENT: {' and '.join(dict.fromkeys(self._unlawful))} does not keep the model's distribution"

    @property
    def _unlawful(self) -> list[str]:
        """Rules whose law is not the model's."""
        found: list[ExactLaw | RuleFinding] = [*self.rules, *self.exact]
        return [one.rule for one in found if not one.biased and not one.as_it_should_be]

    def _void(self) -> str:
        missed = ", ".join(control.name for control in self.controls if not control.caught)
        return f"void: no difference was seen, but neither were those made on purpose ({missed})"

    def _incomplete(self) -> str:
        failed = ", ".join(f"{one.name} ({one.failure})" for one in self.drafters if one.failure)
        return (
            f"incomplete: no difference in {tokens_text(self.tokens)}, but not all could run: {failed or 'nothing ran'}"
        )

    def _settings(self) -> str:
        temperatures = sorted({t for finding in self.drafters for t in finding.temperatures})
        batches = sorted({b for finding in self.drafters for b in finding.batches})
        sides = ["alone" if b == 1 else f"{b} side by side" for b in batches]
        return f"temperature {_listed([f'{t:g}' for t in temperatures])}, {_listed(sides)}"

    def _here(self) -> str:
        versions = self.machine.get("versions", {})
        engine = f"openvino {versions['openvino']}" if "openvino" in versions else ""
        where = ", ".join(filter(None, [f"sooner {versions.get('sooner', '?')}", engine]))
        return f" ({self.model}, {where}, {self.machine.get('processor', 'unknown processor')})."

    # -- tables ------------------------------------------------------------------------------------------------------

    def sections(self) -> list[Section]:
        """The tables, most telling first."""
        found = [self._texts()]
        if self.differences:
            found.append(self._where())
        if self.rules:
            found.append(self._laws())
        if self.exact:
            found.append(self._exact())
        return [*found, self._controls()] if self.controls else found

    def _texts(self) -> Section:
        rows = [
            (f.name, f"{f.texts}", f"{f.tokens:,}", f"{f.drafted:,}", f"{f.accepted:,}", _outcome(f))
            for f in self.drafters
        ]
        rows += [(name, "", "", "", "", f"left out: {why}") for name, why in self.refused.items()]
        columns = ("drafter", "texts", "tokens", "drafted", "kept", "against the plain text")
        return Section("Texts, token ids and log-probabilities", columns, tuple(rows))

    def _where(self) -> Section:
        columns = ("drafter", "where", "plain", "drafted", "margin", "rows differ by", "row counts differ by", "what")
        rows = tuple(
            (
                d.drafter,
                f"prompt {d.prompt + 1}, seed {d.seed}, t {d.temperature:g}, token {d.position + 1}",
                _candidates(d.plain) or "-",
                _candidates(d.drafted) or "-",
                f"{d.margin:.3g}",
                f"{d.largest:.3g}",
                f"{d.spread:.3g}",
                f"{d.kind}: {d.why}",
            )
            for d in self.differences
        )
        kinds = ", ".join(sorted({d.kind for d in self.differences}))
        first = self.differences[0]
        brief = (
            f"first difference: {rows[0][1]} under {first.drafter}; plain {rows[0][2]}; drafted {rows[0][3]} ({kinds})"
        )
        note = "Likeliest tokens of both rows with their log-probabilities; margin and differences in logits."
        return Section("Where texts part", columns, rows, note, brief)

    def _laws(self) -> Section:
        columns = ("rule", "drafts", "texts", "kept", "first", "pairs", "second", "effect", "power", "sees")
        rows = tuple(
            (
                rule.rule,
                rule.shape,
                f"{rule.draws:,}" + (" (again)" if rule.repeated else ""),
                f"{rule.accepted:.2f}",
                *(f"p {test.p:.2g}" + (" !" if test.rejected else "") for test in rule.tests),
                f"{max(test.effect for test in rule.tests):.3f}",
                f"{min(test.power for test in rule.tests):.2f}",
                f"{max(test.visible for test in rule.tests):.2f}",
            )
            for rule in self.rules
        )
        test = self.rules[0].tests[0]
        note = (
            "Kept: drafted tokens a step. Chi-square tests of the first drafted token, of pairs and of the first token "
            f"of the second step against the model's own law; ! marks p below {test.alpha:.2g} (Bonferroni). Effect: "
            f"Cohen's w. Power: the chance to see a total variation of {test.seen:g}. Sees: the one that is seen in "
            "nine cases of ten. Of the three tests the largest effect and the least power are given."
        )
        return Section("Distribution under the ratio rules, on the model", columns, rows, note)

    def _exact(self) -> Section:
        rows = tuple((law.rule, law.shape, f"{law.distance:.2g}") for law in self.exact if not law.biased)
        worst = max(law.distance for law in self.exact if not law.biased)
        brief = f"every coin enumerated on a toy: total variation at most {worst:.2g}"
        return Section("Distribution, every coin enumerated", ("rule", "drafts", "total variation"), rows, "", brief)

    def _controls(self) -> Section:
        rows = tuple((one.name, "caught" if one.caught else "MISSED", one.said) for one in self.controls)
        caught = sum(one.caught for one in self.controls)
        missed = ", ".join(one.name for one in self.controls if not one.caught)
        brief = f"negative controls: {caught} of {len(rows)} caught" + (f"; MISSED: {missed}" if missed else "")
        note = "Broken on purpose: an audit that misses them shows nothing."
        return Section("Negative controls", ("what is broken", "caught?", "how it showed"), rows, note, brief)

    def facts(self) -> dict[str, str]:
        """What the verdict holds for."""
        settings = dict(self.settings)
        budgets = ", ".join("the controller's" if b is None else str(b) for b in settings["budgets"])
        return {
            "model": self.model,
            "fingerprint": ", ".join(f"{name} {value}" for name, value in self.fingerprint.items()),
            "machine": ", ".join(
                str(self.machine[name]) for name in ("processor", "cores", "system") if name in self.machine
            ),
            "versions": ", ".join(f"{name} {value}" for name, value in self.machine.get("versions", {}).items()),
            "settings": f"seed {settings['seed']}, {self.prompts} prompts, at most {settings['length']} tokens a text, "
            f"budgets {budgets}",
            "row counts change logits by": f"{self.spread:.3g}",
            "took": f"{self.seconds:.0f} s, ended {self.machine.get('time', '')}",
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "exit_code": self.exit_code,
            "tokens": self.tokens,
            **{name: jsonable(getattr(self, name)) for name in self.__dataclass_fields__},
        }


def jsonable(value: Any) -> Any:
    """Records as JSON has them: sets sorted, no infinities."""
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable({name: getattr(value, name) for name in value.__dataclass_fields__})
    if isinstance(value, Mapping):
        return {str(key): jsonable(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [jsonable(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tokens_text(tokens: int) -> str:
    """A count of tokens in words."""
    return "1 token" if tokens == 1 else f"{tokens:,} tokens"


def _outcome(finding: DrafterFinding) -> str:
    if finding.failure:
        return f"could not run: {finding.failure}"
    if not finding.texts:
        return "not run"
    if finding.identical:
        silent = finding.name != "plain" and not finding.drafted
        return "identical, but it drafted nothing" if silent else "identical"
    kinds = sorted({difference.kind for difference in finding.differences})
    return f"{finding.different} of {finding.texts} texts differ: {', '.join(kinds)}"


def _candidates(found: Sequence[Any]) -> str:
    return " ".join(f"{one.text!r} {one.logprob:.3f}" for one in found[:3])


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "nothing"
