"""The controller's benchmark on the toy: what it compares, what it counts, what it notices."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import controller_parts
import controller_runs
import pytest
from controller import PARTS, parse
from controller_figures import Limit, between, grouped, judge, regroup
from controller_limit import ANY, Available, Clairvoyant, Watcher, tally
from controller_own import Timed, timed_steps
from controller_runs import CODE, Deaf, Truth, Variant, batches, collect, default_drafter, one_row, texts, turns
from ticking import TickingTarget, items

from commandline import Joined
from sooner import tree
from sooner.bench.configuration import PLAIN, parse_configuration
from sooner.bench.runner import Runner, Sample
from sooner.bench.summary import Figures
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.loading import DEFAULT_DRAFT
from sooner.protocols import Context
from sooner.targets.openvino import session
from sooner.types import EMPTY_DRAFT, Draft, Rows, Sampling, Step
from toy import ToyCodec

SAMPLING = Sampling(max_tokens=60, ignore_eos=True)


def engine(**options: float) -> Engine:
    """A toy engine whose controller scores eight drafts."""
    return Engine(TickingTarget(**options), ToyCodec(), template=Joined(), controller=FixedController(8), name="toy")


def sampled(*variants: Variant, truth: Truth | None = None, **options: float) -> list[Sample]:
    """Six texts under plain decoding and ``variants``."""
    runner = Runner(engine(**options), [PLAIN, *variants], SAMPLING)
    groups = [(item,) for item in items(6)]
    return [sample for row in turns(runner, groups, 1, truth) for sample in row]


def test_control_that_never_errs_scores_nothing_in_vain() -> None:
    truth: Truth = {}
    plain = Variant("default", (DEFAULT_DRAFT,), make=default_drafter)
    perfect = Variant("perfect", (DEFAULT_DRAFT,), make=lambda one: Clairvoyant(default_drafter(one), truth))
    found = sampled(plain, perfect, truth=truth, sharpness=8.0)
    drafted = {name: sum(s.drafted for s in found if s.configuration == name) for name in ("default", "perfect")}
    accepted = {name: sum(s.accepted for s in found if s.configuration == name) for name in drafted}
    assert 0 < accepted["perfect"] == drafted["perfect"] < drafted["default"]
    assert accepted["default"] < drafted["default"]


def test_a_changed_text_ends_the_benchmark() -> None:
    drafting = Variant("default", (DEFAULT_DRAFT,), make=default_drafter)
    with pytest.raises(AssertionError, match="default changed a text of toy"):
        sampled(drafting, row_dependent=True)
    assert len(sampled(replace(drafting, one_row=True), row_dependent=True)) == 12


def test_without_the_two_row_rule_a_plain_row_is_fed_alone() -> None:
    def rows() -> int:
        return len(session.branches([1, 2, 3], (4,))[0].tokens)  # type: ignore[attr-defined]  # the name in its user

    with one_row():
        assert rows() == 1
        assert session.branches([1], (4,), tree.chain([5], 0.5, "x"))[0].tokens == (4, 5)  # type: ignore[attr-defined]
    assert rows() == 2


def test_available_counts_what_was_known_before_each_token() -> None:
    text = [5, 6, 7, 8, 9]
    right, wrong = tree.chain([6, 7, 0], 0.5, "a"), tree.chain([1], 0.9, "b")
    either = tree.merge([wrong, right])
    found: dict[str, Available] = {}
    notes = [(1, "a", right), (2, "a", tree.chain([7], 0.5, "a")), (3, "a", wrong), (4, "a", wrong)]
    tally([*notes, (1, "b", either), (2, "b", wrong), (3, "b", tree.chain([8], 0.5, "b"))], text, 4, found)
    assert (found["a"].positions, found["a"].proposed, found["a"].top) == (3, 3, [2, 2, 2])
    assert found["a"].reach[:3] == [2, 1, 0]
    assert found["a"].passes == 1, "two right at the first position lead past the end"
    assert found["b"].top == [1, 2, 2]
    assert (found[ANY].top, found[ANY].reach[0]) == ([3, 3, 3], 3)


def test_the_watcher_sees_every_token_and_drafts_nothing() -> None:
    one = engine(sharpness=8.0)
    watcher = Watcher([default_drafter(one)])
    runner = Runner(one, [Variant("watching", (DEFAULT_DRAFT,), budget=1, make=lambda _: watcher)], SAMPLING)
    runner.warm_up()
    watcher.notes.clear()
    sample = runner.run(runner.configurations[0], (items(1)[0],), 0)
    assert sample.drafted == 0
    assert [position for position, _, _ in watcher.notes] == list(range(1, len(sample.tokens[0]) - 1))


def test_a_deaf_drafter_gets_no_noise() -> None:
    found: list[Context] = []

    class Listener:
        name = "listener"

        def propose(self, contexts: Sequence[Context]) -> list[Draft]:
            found.extend(contexts)
            return [EMPTY_DRAFT for _ in contexts]

        def observe(self, step: Step, rows: Rows) -> None:
            pass

        def forget(self, id: int) -> None:
            pass

    one = engine()
    hears = Variant("hears", (DEFAULT_DRAFT,), make=lambda _: Listener())
    deaf = Variant("deaf", (DEFAULT_DRAFT,), make=lambda _: Deaf(Listener()))
    for variant, silent in ((hears, False), (deaf, True)):
        found.clear()
        runner = Runner(one, [variant], replace(SAMPLING, temperature=0.8))
        runner.warm_up()
        assert {context.noise is None for context in found} == {silent}


def figures(low_seconds: float, count: int = 6, category: str = "qa") -> dict[str, Figures]:
    """Figures of texts that took 2 s plainly and ``low_seconds`` otherwise."""
    found = [
        Sample(name, category, (str(i),), 0, ((1, 2),), seconds, 2, seconds, 2, 1, 2, 1, 1, 0.1, 1.0)
        for i in range(count)
        for name, seconds in (("plain", 2.0), ("other", low_seconds))
    ]
    return {group: by_name["other"] for group, by_name in grouped(found).items()}


@pytest.mark.parametrize(
    ("seconds", "count", "reached"),
    [(1.0, 6, [False, True]), (0.9, 6, [True, True]), (2.2, 6, [False, False]), (0.9, 3, [True, None])],
)
def test_limits_are_held_against_what_was_measured(seconds: float, count: int, reached: list[bool | None]) -> None:
    found = judge(figures(seconds, count), [Limit("qa", "speed-up", 2.2), Limit("rag", "speed-up", 2.5)])
    assert [verdict.reached for verdict in found] == reached


def test_groups_of_categories() -> None:
    sample = sampled(Variant("default", (DEFAULT_DRAFT,), make=default_drafter))
    named = [replace(s, category=name) for name in ("writing", "stem", "qa", CODE) for s in sample]
    assert {name: len(found) for name, found in regroup(named).items()} == {
        **dict.fromkeys(("writing", "stem", "qa", CODE), 12),
        "chat": 24,
        "overall": 36,
    }
    assert between(sample, "plain", "default") is not None
    several = {"writing": items(3), "stem": items(3), "qa": items(5)}
    assert [(group[0].category, len(group)) for group in batches(several, 4)] == [("chat", 4), ("qa", 4)]


def test_ctrl_c_keeps_whole_groups() -> None:
    rows = [sampled()[:1], sampled()[:1]]
    saved = []

    def interrupted() -> object:
        yield from rows
        raise KeyboardInterrupt

    samples, stopped = collect(interrupted(), 5, lambda found, early: saved.append((len(found), early)))  # type: ignore[arg-type]
    assert (len(samples), stopped, saved[-1]) == (2, True, (2, True))


def test_time_is_put_down_to_whose_it_is() -> None:
    class Sleeper:
        name = "sleeper"

        def propose(self) -> str:
            time.sleep(0.01)
            return "done"

    timed = Timed(Sleeper())
    assert (timed.name, timed.propose()) == ("sleeper", "done")
    assert timed.ms >= 10
    one = engine(sharpness=8.0)
    kept = one.controller
    groups = [(item,) for item in items(2)]
    plain, want = timed_steps(one, groups, SAMPLING, drafting=False)
    drafted, got = timed_steps(one, groups, SAMPLING, drafting=True)
    assert got == want
    assert len(drafted["pass"]) < len(plain["pass"]) == 2 * 59
    assert sum(drafted["drafter"]) > 0 == sum(plain["drafter"])
    assert one.controller is kept


def test_only_evaluation_prompts_and_the_code_are_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    questions = tmp_path / "question.jsonl"
    lines = [
        {"question_id": n, "category": "qa" if n < 30 else "rag", "turns": [f"question {n}"]} for n in range(1, 60)
    ]
    questions.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    monkeypatch.setattr(controller_runs, "SPEC_BENCH", questions)
    found = texts(3, ["qa", CODE])
    assert [item.id for item in found["qa"]] == ["5", "7", "10"]
    assert (list(found), len(found[CODE])) == (["qa", CODE], 3)
    assert list(texts(3, code=False)) == ["qa", "rag"]
    with pytest.raises(SystemExit, match="no category nonsense"):
        texts(2, ["nonsense"])


@pytest.mark.parametrize("part", PARTS)
def test_every_part_says_how_long_it_takes(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([part, "--help"])
    assert "minutes" in capsys.readouterr().out


def test_fixed_configurations_are_known() -> None:
    for name in controller_parts.FIXED:
        assert parse_configuration(name).budget
    with pytest.raises(DraftError):
        parse_configuration("nonsense@2")
