"""Figures, differences and exports of traces, against what the completion counted and what is known of the steps."""

from __future__ import annotations

import copy
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Record, record, steps_of, write

from sooner.control.cost import CostCurve
from sooner.trace import Trace
from sooner.trace.difference import compare
from sooner.trace.difference import settings as settings_of
from sooner.trace.perfetto import export
from sooner.trace.plain import PlainStep
from sooner.trace.stats import Stats, collect
from toy import TreeDrafter, toy_engine

OPTIONS: dict[str, Any] = {"max_tokens": 40, "seed": 3, "temperature": 0.9, "ignore_eos": True}


def recorded(seed: int = 1, **options: Any) -> list[Record]:
    return record(toy_engine(TreeDrafter(seed), flicker=True), [1, 2, 3], **(OPTIONS | options))


def stats_of(records: list[Record]) -> Stats:
    stats = Stats(records[0])
    for step in steps_of(records):
        stats.add(step)
    stats.footer = records[-1]
    return stats


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 3))
def test_figures_are_those_of_the_completion(seed: int, n: int) -> None:
    records = recorded(seed, n=n)
    told = stats_of(records).to_dict()
    speculation = [choice["speculation"] for choice in records[-1]["choices"]]
    for name in ("steps", "drafts", "drafted", "accepted"):
        assert told[name] == sum(one[name] for one in speculation)
    if n == 1:
        assert told["kept_histogram"] == speculation[0]["acceptance_histogram"]
        assert told["acceptance_length"] == speculation[0]["acceptance_length"]
    assert sum(one["kept"] for one in told["positions"]) == told["accepted"]
    assert sum(one["accepted"] for one in told["drafters"].values()) == told["accepted"]
    assert sum(one["drafted"] for one in told["drafters"].values()) == told["drafted"]
    assert told["tokens"] == sum(choice["usage"]["completion_tokens"] for choice in records[-1]["choices"])
    kept = [one["kept"] for one in told["positions"]]
    assert kept == sorted(kept, reverse=True)
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_a_trace_without_steps_has_figures_too() -> None:
    told = stats_of([{"type": "header"}, {"type": "footer"}]).to_dict()
    assert (told["tokens"], told["acceptance_length"], told["speed_up"]) == (0, 1.0, None)


# -- what a plain step takes -----------------------------------------------------------------------------------------


def test_undrafted_steps_tell_what_a_plain_one_takes() -> None:
    plain = PlainStep()
    for i in range(8):
        plain.add(1, 1, [], 10.0 + i, 1.0)
        plain.add(4, 4, [-1, 0, 1], 99.0, 1.0)
    assert plain.estimate(None, 100) == (14.5, "steps")


def test_without_them_the_curve_does_scaled_by_the_passes_there_were() -> None:
    curve = CostCurve((2, 4, 8), (10.0, 12.0, 16.0), branch_ms=1.0, refeed=1.0, context_ms=0.01, context=100)
    slow = 1.5
    plain = PlainStep()
    assert plain.estimate(curve.to_dict(), 50) is None
    for _ in range(9):
        plain.add(4, 4, [-1, 0, 1], slow * 12.0, 0.5)
        plain.add(4, 4, [-1, 0, 0], slow * (14.0 + 1.0), 0.5)  # two rows are fed again, and a branch
    found = plain.estimate(curve.to_dict(), 50)
    assert found is not None
    assert found[0] == pytest.approx(slow * 10.0 + 0.5)
    assert found[1] == "curve"
    far = plain.estimate(curve.to_dict(), 1100)
    assert far is not None
    assert far[0] != found[0]
    for broken in (None, {}, {"rows": "x"}, 3):
        assert plain.estimate(broken, 50) is None


def test_shared_passes_tell_nothing() -> None:
    plain = PlainStep()
    for _ in range(20):
        plain.add(1, 4, [], 10.0, 1.0)
    assert plain.estimate(None, 100) is None
    assert recorded(n=3)[-1]["plain_ms"] is None


def test_the_footer_tells_and_a_cut_trace_is_estimated_alike() -> None:
    records = record(toy_engine(None), [1, 2, 3], **OPTIONS)
    footer = records[-1]
    assert footer["plain_from"] == "steps"
    whole = stats_of(records).speed
    assert whole.plain_ms == footer["plain_ms"]
    assert stats_of([*records[:-1], {"type": "footer"}]).speed.plain_ms == pytest.approx(whole.plain_ms, abs=2e-3)
    assert whole.ratio is not None


def test_times_run_from_the_request() -> None:
    steps = steps_of(recorded())
    at = [step["at_ms"] for step in steps]
    assert at == sorted(at)
    assert recorded()[-1]["choices"][0]["timings"]["ttft_ms"] > 0
    for before, step in pairwise(steps):
        assert step["at_ms"] - before["at_ms"] >= step["score_ms"] - 0.01


# -- two traces ------------------------------------------------------------------------------------------------------


def test_a_trace_differs_from_itself_in_nothing(tmp_path: Path) -> None:
    records = recorded(n=2)
    path = write(tmp_path / "a", records)
    found = compare(path, path, 2)
    assert (found.same, found.position, found.a.count) == (True, None, 40)
    assert settings_of(records[0], records[0]) == []


def test_drafted_and_plain_are_the_same_text_under_other_settings(tmp_path: Path) -> None:
    drafted, plain = recorded(), record(toy_engine(None), [1, 2, 3], **OPTIONS)
    assert compare(write(tmp_path / "a", drafted), write(tmp_path / "b", plain)).same
    assert [name for name, *_ in settings_of(drafted[0], plain[0])] == ["drafter"]


def test_where_two_part_is_found_in_any_answer(tmp_path: Path) -> None:
    a, b = recorded(n=2), recorded(2, n=2)
    for choice in (0, 1):
        changed = copy.deepcopy(b)
        texts = [[t for s in steps_of(a) if s["choice"] == c for t in s["tokens"]] for c in (0, 1)]
        position = 0
        for step in steps_of(changed):
            if step["choice"] == choice and step["index"] == 4:
                step["tokens"][0] = 1 + step["tokens"][0] % 5
                break
            position += len(step["tokens"]) if step["choice"] == choice else 0
        found = compare(write(tmp_path / "a", a), write(tmp_path / "b", changed), 2)
        assert (found.same, found.choice, found.position) == (False, choice, position)
        assert list(found.before) == texts[choice][:position][-32:]
        assert list(found.a.tokens) == texts[choice][position : position + 12]
        assert found.b.tokens[0] != found.a.tokens[0]
        assert found.b.steps[-1][1]["index"] == 4


def test_a_text_that_goes_on_and_one_that_ends_otherwise_differ(tmp_path: Path) -> None:
    whole = recorded()
    shorter = [*whole[:-3], whole[-1]]
    found = compare(write(tmp_path / "a", whole), write(tmp_path / "b", shorter))
    assert found.position is not None
    assert found.a.tokens
    assert not found.b.tokens
    ended = copy.deepcopy(whole)
    steps_of(ended)[-1]["finish"] = {"reason": "abort", "detail": None}
    found = compare(write(tmp_path / "a", whole), write(tmp_path / "b", ended))
    assert (found.position, found.same) == (None, False)


def test_settings_name_what_differs() -> None:
    one = recorded()[0]
    other = copy.deepcopy(one)
    other["sampling"]["top_k"] = 5
    other["fingerprint"]["model"] = "other"
    other["seed"] = 9
    assert {name for name, *_ in settings_of(one, other)} == {"top_k", "model", "seed"}
    greedy = {**other, "sampling": {**other["sampling"], "temperature": 0.0}}
    assert "seed" not in {name for name, *_ in settings_of(greedy, {**greedy, "seed": 4})}


# -- Perfetto --------------------------------------------------------------------------------------------------------


def test_the_export_is_chrome_trace_events_that_nest(tmp_path: Path) -> None:
    records = recorded(n=2)
    with Trace(write(tmp_path / "a", records)) as trace:
        out = io.StringIO()
        count = export(trace, out)
    exported = json.loads(out.getvalue())
    events = exported["traceEvents"]
    assert exported["displayTimeUnit"] == "ms"
    assert len(events) == count
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == [
        "sooner: a model",
        "answer 1",
        "answer 2",
    ]
    for track in (1, 2):
        slices = [event for event in events if event["ph"] == "X" and event["tid"] == track]
        steps = [step for step in steps_of(records) if step["choice"] == track - 1]
        assert sum(event["name"].startswith("step ") for event in slices) == len(steps)
        stack: list[int] = []
        for event in slices:
            begin, end = (round(1e3 * at) for at in (event["ts"], event["ts"] + event["dur"]))
            while stack and stack[-1] <= begin:
                stack.pop()
            assert end >= begin
            assert not stack or end <= stack[-1], event
            stack.append(end)
        last = max(round(1e3 * (event["ts"] + event["dur"])) for event in slices)
        assert last >= round(1e6 * steps[-1]["at_ms"]) - 1
    counters = [event for event in events if event["ph"] == "C"]
    assert sum(event["args"]["kept"] for event in counters) == sum(len(step["path"]) for step in steps_of(records))


def test_figures_come_from_a_file_too(tmp_path: Path) -> None:
    records = recorded()
    with Trace(write(tmp_path / "a", records)) as trace:
        assert collect(trace).to_dict() == stats_of(records).to_dict()
