"""Trace records come back as the steps they were made of; trace files are claimed without loss."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sooner.constraint import compile_constraint
from sooner.errors import InvalidRequest
from sooner.trace import TraceFile, footer_record, header_record, read_step, step_record
from sooner.types import ROOT, Draft, Finish, Odds, Step, TokenLogprob
from toy import TreeDrafter, toy_engine
from toy_json import json_engine

milliseconds = st.integers(0, 10**9).map(lambda us: us / 1000)
chance = st.integers(0, 1000).map(lambda p: p / 1000)
logprob = st.one_of(st.just(-math.inf), st.floats(-1e3, 0))
entries = st.builds(
    TokenLogprob, st.integers(0, 99), logprob, st.lists(st.tuples(st.integers(0, 99), logprob), max_size=3).map(tuple)
)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    n = draw(st.integers(0, 6))
    draft = Draft(
        tuple(draw(st.integers(0, 99)) for _ in range(n)),
        tuple(draw(st.integers(ROOT, i - 1)) for i in range(n)),
        tuple(draw(chance) for _ in range(n)),
        tuple(draw(st.sampled_from(["ngram", "suffix"])) for _ in range(n)),
    )
    finish = draw(st.sampled_from([None, Finish("length"), Finish("stop", "é\n"), Finish("stop", 2)]))
    logprobs = draw(st.one_of(st.none(), st.lists(entries, max_size=3).map(tuple)))
    text = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=9))
    times = draw(st.tuples(*(milliseconds,) * 5))
    return Step(
        1, 0, 2, draft, (0,)[:n], (5, 7), ("ngram", "target"), text, logprobs, finish, 3, 9, *times, draw(odds(n))
    )


@st.composite
def odds(draw: st.DrawFn, n: int) -> Odds | None:
    if draw(st.booleans()):
        return None
    some = st.one_of(st.none(), chance)
    top = st.lists(st.tuples(st.integers(0, 99), chance), max_size=3).map(tuple)
    drafted, q = (draw(st.lists(some, min_size=n, max_size=n).map(tuple)) for _ in range(2))
    return Odds((draw(chance), draw(chance)), (draw(top), draw(top)), drafted, q)


@given(steps())
def test_a_step_survives_the_line(step: Step) -> None:
    line = json.dumps(step_record(step), allow_nan=False)
    assert read_step(json.loads(line)) == step
    assert json.dumps(step_record(read_step(json.loads(line)))) == line


def test_what_an_older_record_lacks_is_default() -> None:
    step = Step(1, 0, 2, Draft(), (), (5,), ("target",), "a", rows=3, pass_rows=4)
    older = {name: value for name, value in step_record(step).items() if name != "pass_rows"}
    assert read_step(older) == replace(step, pass_rows=0)
    for needed in ("sequence", "draft", "path", "tokens", "sources", "text"):
        with pytest.raises(InvalidRequest):
            read_step({name: value for name, value in older.items() if name != needed})


def test_a_changed_record_is_another_step() -> None:
    """Negative control of the test above."""
    step = Step(1, 0, 2, Draft(), (), (5,), ("target",), "a")
    assert read_step({**step_record(step), "tokens": [6]}) != step


@pytest.mark.parametrize(
    "record", [{}, {"type": "header"}, {**step_record(Step(1, 0, 2, Draft(), (), (), (), ""))} | {"draft": 3}]
)
def test_what_is_no_step_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="not a step of trace schema 1"):
        read_step(record)


def test_a_header_holds_the_constraint() -> None:
    engine = json_engine()
    constraint = compile_constraint("regex", "ab", engine.codec)
    handle = engine.submit(engine.request([3], max_tokens=9, constraint=constraint))
    list(engine.follow(handle))
    assert header_record(engine, handle)["constraint"] == {"kind": "regex", "source": "ab"}


def test_header_and_footer_hold_what_a_replay_needs() -> None:
    engine = toy_engine(TreeDrafter(1))
    handle = engine.submit(engine.request([1, 2, 3], max_tokens=9, seed=3, logit_bias={4: 1.5}, n=2))
    list(engine.follow(handle))
    header = header_record(engine, handle, sooner="0")
    assert json.loads(json.dumps(header, allow_nan=False)) == header
    assert (header["prompt"], header["seed"], header["drafter"]) == ([1, 2, 3], 3, "tree")
    assert header["sampling"]["logit_bias"] == {"4": 1.5}
    assert header["constraint"] is None
    footer = footer_record(engine.completion(handle))
    assert [choice["choice"] for choice in footer["choices"]] == [0, 1]
    assert footer_record(None, "lost")["error"] == "lost"


def test_a_file_keeps_its_content_until_the_first_record(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("older\n", encoding="utf-8")
    with TraceFile(path):
        pass
    assert path.read_text(encoding="utf-8") == "older\n"
    with TraceFile(path) as trace:
        trace.write({"a": "é"})
        assert path.read_text(encoding="utf-8") == '{"a":"é"}\n'
        trace.write({"b": 1})
    assert path.read_text(encoding="utf-8") == '{"a":"é"}\n{"b":1}\n'


def test_a_file_made_for_nothing_is_removed(tmp_path: Path) -> None:
    with TraceFile(tmp_path / "t.jsonl"):
        assert (tmp_path / "t.jsonl").exists()
    assert not (tmp_path / "t.jsonl").exists()


def test_an_error_inside_is_not_hidden_by_one_at_the_end() -> None:
    with pytest.raises(InvalidRequest, match="No space left"), TraceFile("/dev/full") as trace:
        trace.write({"a": 1})
