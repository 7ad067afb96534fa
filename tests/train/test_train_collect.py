"""Collecting a target's text: what is written is the engine's own, in any order of crashes; and where loops begin."""

from __future__ import annotations

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sooner.bench.loops import in_loop, loop_start
from sooner.train.collect import collect, read_texts
from sooner.train.table import build_table
from sooner.train.templates import builtin_prompts
from sooner.types import Sampling
from toy import toy_engine

PROMPTS = ["abc", "fade", "{p} cab", "", "bead", "gg h"]
SAMPLING = Sampling(max_tokens=30, temperature=0.8, seed=5, ignore_eos=True)


def test_a_collection_goes_on_after_a_crash_and_equals_one_without(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    total = collect(toy_engine(), PROMPTS, whole, tokens=10**6, sampling=SAMPLING, in_flight=1)
    assert total == sum(len(t.tokens) for t in read_texts(whole)) > 60
    lines = whole.read_bytes().splitlines(keepends=True)
    broken.write_bytes(b"".join(lines[:2]) + lines[2][:17])
    collect(toy_engine(), PROMPTS, broken, tokens=10**6, sampling=SAMPLING, in_flight=1)
    assert sorted(read_texts(broken), key=lambda t: t.index)[:2] == sorted(read_texts(whole), key=lambda t: t.index)[:2]
    assert {t.index for t in read_texts(broken)} == {t.index for t in read_texts(whole)} == {0, 1, 2, 4, 5}
    first = next(t for t in read_texts(whole) if t.index == 1)
    alone = toy_engine().generate(list(first.prompt), Sampling(max_tokens=30, temperature=0.8, seed=6, ignore_eos=True))
    assert alone.token_ids[: len(first.tokens)] == first.tokens


def test_it_stops_at_the_number_of_tokens_asked_for(tmp_path: Path) -> None:
    engine = toy_engine()
    total = collect(engine, itertools.cycle(["abc"]), tmp_path / "x", tokens=100, sampling=SAMPLING, in_flight=4)
    assert 100 <= total < 250
    assert not engine.busy


def test_builtin_prompts_are_many_and_reproducible() -> None:
    first = list(itertools.islice(builtin_prompts(3), 500))
    assert first == list(itertools.islice(builtin_prompts(3), 500))
    assert len(set(first)) > 400
    assert not any("{" in prompt.replace("{p}", "") for prompt in first)


@given(head=st.lists(st.integers(0, 50), max_size=20), period=st.integers(1, 12), times=st.integers(3, 6))
def test_loops_are_found_where_they_begin(head: list[int], period: int, times: int) -> None:
    cycle = [100 + i for i in range(period)]
    tokens = head + cycle * max(times, -(-24 // period))
    assert in_loop(tokens)
    assert loop_start(tokens) == len(head) + period
    assert loop_start([*tokens, 999]) == len(tokens) + 1


def test_a_table_keeps_what_follows_most() -> None:
    table = build_table([([9], [1, 2, 3, 1, 2, 4, 1, 2, 3])] * 2, model="m")
    at = [i for i, row in enumerate(table.tokens[2].tolist()) if row[:2] == [3, 4]]
    assert len(at) == 1
    assert table.chances[2][at[0]].tolist()[0] > table.chances[2][at[0]].tolist()[1] > 0
