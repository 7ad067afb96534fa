"""Configurations in turns on a target whose passes take a known time: every figure is what it must be."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from ticking import TickingTarget, items, runner

from sooner.bench.configuration import PLAIN, Configuration, parse_configuration
from sooner.bench.loops import loop_start
from sooner.bench.report import COLUMNS, as_csv, as_json, as_markdown, cells
from sooner.bench.runner import group_items
from sooner.bench.summary import ALL, differing, summarise
from sooner.bench.workload import Item
from sooner.errors import DraftError
from sooner.targets.toy import ToySession


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_the_short_form() -> None:
    assert parse_configuration("plain") == parse_configuration("none") == PLAIN
    assert parse_configuration("cascade") == Configuration("cascade", ("cascade",))
    text = "suffix:max=12+recycle@9"
    assert parse_configuration(text) == Configuration(text, ("suffix:max=12", "recycle"), 9)
    assert parse_configuration("kind=ngram,max=8+suffix").draft == ("kind=ngram,max=8", "suffix")
    assert parse_configuration("suffix@0").plain
    for bad in ("nosuch", "plain@3", "suffix+", "@4", "suffix:max"):
        with pytest.raises(DraftError):
            parse_configuration(bad)


def test_times_tokens_and_ratio_are_those_of_the_clock() -> None:
    bench = runner(TickingTarget(row=0.1), "suffix@4", "random@4")
    samples = list(bench.interleaved([(item,) for item in items(6)], 1))
    assert [s.configuration for s in samples] == ["plain", "suffix@4", "random@4"] * 6
    for sample in samples:
        assert sample.counted == sample.step_tokens == 119, "the first token comes with the prompt"
        assert sample.seconds == pytest.approx(sample.steps + 0.1 * sample.drafted)
    plain, suffix, random = summarise(samples)
    assert (plain.tokens, plain.tokens_per_second, plain.acceptance_length, plain.ratio) == (6 * 119, 1.0, 1.0, None)
    assert suffix.ratio is not None
    assert suffix.ratio.value == pytest.approx(suffix.tokens_per_second)
    assert suffix.ratio.low > 1.0, "a greedy toy repeats itself"
    assert suffix.ratio.value == pytest.approx(suffix.acceptance_length / suffix.break_even)
    assert random.ratio is not None
    assert random.ratio.high < 1.0
    assert suffix.differing == random.differing == 0


def test_what_comes_before_loops_is_counted_apart() -> None:
    samples = list(runner(TickingTarget(row=0.0), "suffix@6").interleaved([(i,) for i in items(5)], 1))
    for sample in samples:
        start = loop_start(sample.tokens[0])
        assert sample.fresh_tokens == start - 1 < 100, "a greedy toy falls into a loop"
        if sample.configuration == "plain":
            assert sample.fresh_seconds == sample.fresh_tokens
    _, drafted = summarise(samples)
    assert drafted.ratio is not None
    assert drafted.fresh is not None
    assert 1.0 <= drafted.fresh.value < drafted.ratio.value / 1.5, "copying a loop flatters"


def test_prompts_are_as_cold_for_each_and_drafters_start_each_round_anew() -> None:
    target = TickingTarget()
    opened: list[str] = []
    target_open = target.open

    def watched(tokens: Sequence[int] = (), salt: str = "") -> ToySession:
        opened.append(salt)
        return target_open(tokens, salt)

    target.open = watched  # type: ignore[method-assign]  # a spy
    bench = runner(target, "recycle@4")
    rounds = list(bench.interleaved([(item,) for item in items(4)], 2))
    first, second = rounds[:8], rounds[8:]
    assert [replace(s, round=0, draft_ms=0, pass_ms=0, seconds=0, fresh_seconds=0) for s in second] == [
        replace(s, draft_ms=0, pass_ms=0, seconds=0, fresh_seconds=0) for s in first
    ]
    assert len(set(opened)) == 6, "a salt for each configuration in each round and in the warm-up"
    learned = [sample.accepted for sample in first if sample.configuration == "recycle@4"]
    alone = [list(runner(TickingTarget(), "recycle@4").interleaved([(i,)], 1))[1] for i in items(4)]
    assert sum(learned) > sum(sample.accepted for sample in alone), "from one text to the next"
    (_, figures) = summarise(rounds)
    assert figures.ratio is not None
    assert figures.ratio.pairs == 4, "rounds of one prompt are one pair"


def test_a_batch_is_timed_whole() -> None:
    groups = group_items({"a": items(5, "a"), "b": items(2, "b")}, 3)
    assert [len(group) for group in groups] == [3, 2, 2]
    samples = list(runner(TickingTarget(row=0.1), "suffix@4").interleaved(groups, 1))
    alone = list(runner(TickingTarget(), "suffix@4").interleaved([(i,) for g in groups for i in g], 1))
    texts = {(s.category, i): t for s in samples for i, t in zip(s.items, s.tokens, strict=True)}
    assert texts == {(s.category, s.items[0]): s.tokens[0] for s in alone}
    plain = samples[0]
    assert plain.counted == 3 * 120
    assert plain.seconds == pytest.approx(120 * 1.2)
    assert plain.fresh_seconds == pytest.approx(0.4 * plain.fresh_tokens), "a pass is shared by three texts"
    assert [f.category for f in summarise(samples)] == ["a", "a", "b", "b", ALL, ALL]


def test_a_target_whose_rows_depend_on_their_neighbours_is_caught() -> None:
    """Negative control: the comparison can say no, and then names no ratio."""
    target = TickingTarget(row_dependent=True, sharpness=0.5)
    samples = list(runner(target, "random@4").interleaved([(item,) for item in items(4)], 1))
    assert differing(samples[::2], samples[1::2])
    _, figures = summarise(samples)
    assert figures.differing > 0
    assert figures.ratio is None
    assert "DIFFER" in cells(figures)[3]
    assert as_json([figures], samples, fingerprint={})["identical"] is False


def test_few_pairs_and_wide_intervals_are_no_speed_up() -> None:
    samples = list(runner(TickingTarget(), "suffix@4").interleaved([(item,) for item in items(2)], 1))
    assert cells(summarise(samples)[1])[3] == "too few pairs"
    steady = list(runner(TickingTarget(), "random@4").interleaved([(item,) for item in items(6)], 1))
    noisy = [replace(s, seconds=50.0 + 20 * (i % 3)) for i, s in enumerate(steady)]
    assert cells(summarise(noisy)[1])[3] == "no difference shown"


def test_json_csv_and_markdown_hold_the_same() -> None:
    groups = group_items({"a": items(4, "a"), "b|c": items(4, "b|c")}, 1)
    samples = list(runner(TickingTarget(), "suffix@4").interleaved(groups, 1))
    figures = summarise(samples)
    record = json.loads(json.dumps(as_json(figures, samples, fingerprint={"model": "toy"}, model="toy")))
    assert record["identical"] is True
    assert record["machine"]["processor"]
    assert record["figures"][1]["ratio"]["difference_shown"] is True
    rows = list(csv.DictReader(io.StringIO(as_csv(samples))))
    assert [float(row["seconds"]) for row in rows] == [run["seconds"] for run in record["runs"]]
    table = as_markdown(figures, "toy").splitlines()[2:]
    assert len(table) == 2 + len(figures)
    assert all(row.replace("\\|", "").count("|") == len(COLUMNS) + 1 for row in table)


def test_what_the_engine_cannot_take_is_named() -> None:
    bench = runner(TickingTarget(), "suffix@4")
    assert bench.refusal(items(1)[0]) is None
    assert "context" in str(bench.refusal(Item("1", "x", "a" * 2000)))
    assert "another model" in str(bench.refusal(Item("1", "x", [1, 2], "0" * 64)))
    assert not bench.engine.busy
