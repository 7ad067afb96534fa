"""The text audit on a toy: a sound model is cleared under every drafter, broken ones are caught and told apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sooner.audit.controls import FAULTS, BrokenTarget
from sooner.audit.difference import FAULT, NEAR_TIE, ROUNDING, Evidence, explain, row_spread
from sooner.audit.drafters import STANDARD, Drafters, expanded
from sooner.audit.journal import Journal
from sooner.audit.plan import Settings, planned_tokens, rounds
from sooner.audit.text import Answer, TextAudit
from sooner.audit.witness import Watched
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.protocols import Context
from sooner.targets.toy import ToyTarget
from sooner.types import Draft, Rows, Work
from toy import ToyCodec, V

PROMPTS = ["abc", "gab ab", "hag", "dead beef"]
SMALL = Settings(length=12, temperatures=(0.8,), batches=(1, 4), budgets=(4, None), drafters=("oracle", "random"))


def audited(
    settings: Settings = SMALL, fault: str = "", count: int = 2, journal: Journal | None = None, **toy: Any
) -> TextAudit:
    engine = Engine(ToyTarget(V, **toy), ToyCodec())
    drafters = Drafters(engine, settings.drafters)
    if fault:
        engine.target = BrokenTarget(engine.target, FAULTS[fault])
    audit = TextAudit(engine, settings, PROMPTS, drafters, journal or Journal())
    for units in islice(rounds(settings), count):
        for unit in units:
            audit.run(unit)
    assert not engine.busy
    assert engine.drafter is None
    return audit


def kinds(audit: TextAudit) -> set[str]:
    return {difference.kind for finding in audit.findings.values() for difference in finding.differences}


def test_every_drafter_is_cleared_on_a_sound_model() -> None:
    names = tuple(name for name in expanded(()) if name != "table")  # no table fits a toy
    audit = audited(Settings(length=6, temperatures=(0.9,), drafters=names), count=1)
    assert set(audit.findings) == set(STANDARD) - {"table"}
    for finding in audit.findings.values():
        assert finding.identical, finding
        assert finding.texts == 4
        assert not finding.rows
    assert audit.findings["oracle"].accepted > 0
    assert audit.findings["oracle:error_at=0"].drafted > 0 == audit.findings["oracle:error_at=0"].accepted


@pytest.mark.parametrize(
    ("fault", "found"),
    [("last-place", {ROUNDING}), ("row-counts", {ROUNDING, NEAR_TIE}), ("swapped-rows", {FAULT})],
)
def test_what_is_broken_is_caught_and_told_apart(fault: str, found: set[str]) -> None:
    audit = audited(fault=fault)
    oracle = audit.findings["oracle"]
    assert oracle.different == oracle.texts
    assert oracle.rows > 0
    assert kinds(audit) == found


def test_a_toy_whose_rows_depend_on_the_pass_is_caught() -> None:
    audit = audited(row_dependent=True, sharpness=4.0)
    assert sum(finding.different for finding in audit.findings.values()) > 4
    assert FAULT not in kinds(audit)
    for finding in audit.findings.values():
        for difference in finding.differences:
            assert difference.largest <= 1.0 < 2 * difference.spread
            assert len(difference.plain) == len(difference.drafted) == 5


def test_a_near_tie_names_both_tokens_and_how_close_they_were() -> None:
    audit = audited(fault="row-counts", count=6)
    (tie, *_) = [d for f in audit.findings.values() for d in f.differences if d.kind == NEAR_TIE]
    assert tie.wanted is not None
    assert tie.got is not None
    assert tie.wanted.token != tie.got.token
    assert 0 <= tie.margin <= 2 * tie.largest


class Stale(ToyTarget):
    """A cache that keeps the rejected token: the row after a rejection is another context's."""

    def score(self, works: Sequence[Work]) -> list[Rows]:
        found = super().score(works)
        for work, rows in zip(works, found, strict=True):
            if work.draft.tokens and rows.logits.size:
                rows.logits[-1] = np.roll(rows.logits[-1], 1)
        return found


def test_rows_of_another_context_are_a_fault_even_if_row_counts_matter() -> None:
    engine = Engine(Stale(V), ToyCodec())
    audit = TextAudit(engine, SMALL, PROMPTS, Drafters(engine, SMALL.drafters), Journal())
    for unit in next(rounds(SMALL)):
        audit.run(unit)
    assert FAULT in kinds(audit)


def test_a_rule_that_emits_what_its_row_does_not_give_is_a_fault() -> None:
    target = ToyTarget(V)
    engine = Engine(target, ToyCodec())
    request = engine.request("abc", temperature=0.7, seed=3)
    row = target.score([Work(target.open(), request.prompt)])[0].logits[0]
    (plain,) = engine.generate("abc", temperature=0.7, seed=3, max_tokens=1).token_ids
    found = explain(Evidence(request, (), row, row.copy(), plain, (plain + 1) % V), target, ToyCodec())
    assert found["kind"] == FAULT
    assert "the rule is at fault" in found["why"]


def test_row_counts_make_no_difference_on_a_sound_toy_and_one_on_a_broken_one() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8]
    assert row_spread(ToyTarget(V), tokens) == 0.0
    assert row_spread(ToyTarget(V), tokens[:1]) == 0.0
    assert row_spread(ToyTarget(V, row_dependent=True), tokens) > 0.1


class Failing:
    name = "failing"

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        raise RuntimeError("no")

    def observe(self, step: object, rows: Rows) -> None: ...

    def forget(self, id: int) -> None: ...


def test_a_drafter_that_fails_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafters, "_new", lambda self, specs: Failing())
    audit = audited()
    assert "failing failed and is off" in str(audit.findings["random"].failure)
    assert not audit.findings["random"].identical
    assert audit.findings["oracle"].identical
    assert audit.findings["oracle"].texts == 8


def test_a_killed_audit_loses_one_unit_at_most(tmp_path: Path) -> None:
    """Units that are done are not run again, and the findings are those of an audit that was never killed."""
    whole = audited(count=2)
    path = tmp_path / "state.jsonl"
    audited(count=1, journal=Journal(path))
    with path.open("a") as file:
        file.write('["[1, 0.8, \\"\\"]", [{"tok')  # killed in the middle of a line
    journal = Journal(path)
    assert journal.resumed == 3
    again = audited(count=2, journal=journal)
    counted = ("texts", "tokens", "different", "rows")
    for name, finding in again.findings.items():
        assert [getattr(finding, c) for c in counted] == [getattr(whole.findings[name], c) for c in counted]
    assert Journal(path).resumed == 6
    untouched = path.read_bytes()
    audited(count=2, journal=Journal(path))
    assert path.read_bytes() == untouched


def test_a_state_file_of_another_version_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    for text in ('{"schema": 99}\n["a", 1]\n', "", "\0\0\n", "[1, 2]\n"):
        path.write_text(text)
        journal = Journal(path)
        assert journal.resumed == 0
        journal.keep("b", 2)
        assert Journal(path).get("b") == 2
        assert Journal(path).get("a") is None


def test_an_answer_survives_its_file() -> None:
    import json
    from dataclasses import asdict

    answer = Answer((1, 2), (7, 8), [[-0.1, [[1, -0.1], [2, -2.0]]]], "ab", "length None")
    assert Answer.from_json(json.loads(json.dumps(asdict(answer)))) == answer


def test_every_drafter_meets_every_way() -> None:
    settings = Settings(drafters=("a", "b", "c"), temperatures=(0.0, 0.8, 1.0))
    units = [unit for units in islice(rounds(settings), 16) for unit in units if unit.drafter]
    for name in settings.drafters:
        mine = [unit for unit in units if unit.drafter == name]
        assert len({(unit.batch, unit.budget, unit.cold) for unit in mine}) == 16
        assert any(unit.preempted for unit in mine)
    assert len({unit.key for unit in units}) == len(units)
    assert planned_tokens(settings) >= settings.tokens


def test_drafters_are_asked_for_by_name() -> None:
    assert expanded(["suffix@8", "suffix@8", "plain"]) == ["suffix@8", "plain"]
    assert expanded(["all", "suffix@8"])[-1] == "suffix@8"
    with pytest.raises(DraftError, match="leaves nothing to compare"):
        expanded(["plain"])
    with pytest.raises(DraftError, match="names no drafter 'sufix'"):
        expanded(["sufix"])


def test_a_watched_text_stops_looking_where_the_tokens_part() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    plain = Watched()
    for token in range(3):
        plain.see(token, rows[token])
    text = Watched(([0, 1, 2], plain.digests))
    text.see(0, rows[0])
    text.see(1, rows[1] + 1)
    text.see(9, rows[2])
    text.see(1, rows[0])
    assert (text.differing, text.first and text.first[0], text.parting and text.parting[0]) == (1, 1, 2)
