"""Tuning on a target whose passes take a known time: the fastest is found, early, and plain decoding where it is."""

from __future__ import annotations

from itertools import islice

import pytest
from ticking import TickingTarget, items, runner

from sooner.bench.runner import Sample
from sooner.bench.tune import LEAST, candidates, choose, measure


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path_factory.mktemp("cache")))


def counts(samples: list[Sample]) -> dict[str, int]:
    names = [sample.configuration for sample in samples]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def test_the_fastest_is_found_and_losers_drop_out() -> None:
    bench = runner(TickingTarget(row=0.02), "suffix@8", "random@8", max_tokens=200)
    samples = list(measure(bench, items(24)))
    ran = counts(samples)
    assert ran["random@8"] == LEAST
    assert LEAST <= ran["suffix@8"] < 24, "the answer was clear before all prompts were measured"
    choice = choose(bench.configurations, samples)
    assert choice is not None
    assert choice.configuration.name == "suffix@8"
    assert choice.ratio is not None
    assert choice.ratio.low > 1.0
    assert "as fast as plain" in choice.reason


def test_where_rows_are_dear_plain_decoding_wins_and_the_reason_has_the_figures() -> None:
    bench = runner(TickingTarget(row=1.0), "suffix@4", "random@8")
    samples = list(measure(bench, items(24)))
    assert len(samples) < 3 * 24
    choice = choose(bench.configurations, samples)
    assert choice is not None
    assert choice.configuration.plain
    best = next(one for one in choice.figures if one.configuration == "suffix@4")
    assert best.acceptance_length < best.break_even
    assert f"gives {best.acceptance_length:.2f} tokens a pass" in choice.reason
    assert f"needs {best.break_even:.2f} to break even" in choice.reason


def test_the_default_is_kept_unless_something_is_shown_to_be_faster() -> None:
    bench = runner(TickingTarget(row=0.02), "cascade@8", "cascade", max_tokens=200)
    samples = list(measure(bench, items(8)))
    choice = choose(bench.configurations, samples)
    assert choice is not None
    assert choice.configuration.name == "cascade", "the toy's controller is the same fixed budget: a tie"


def test_few_prompts_are_gone_through_again_by_fresh_drafters() -> None:
    bench = runner(TickingTarget(row=0.02), "recycle@4")
    samples = list(measure(bench, items(2)))
    assert counts(samples) == {"plain": LEAST, "recycle@4": LEAST}
    assert {(s.configuration, s.items, s.drafted, s.accepted, s.tokens) for s in samples} == {
        (s.configuration, s.items, s.drafted, s.accepted, s.tokens) for s in samples if s.round == 0
    }


def test_nothing_is_concluded_from_too_little() -> None:
    bench = runner(TickingTarget(), "suffix@4")
    samples = list(islice(measure(bench, items(24)), 2 * LEAST - 1))
    assert choose(bench.configurations, samples) is None
    assert choose(bench.configurations, []) is None


def test_what_changes_the_text_is_never_chosen() -> None:
    """Negative control: a target whose rows depend on their neighbours."""
    bench = runner(TickingTarget(row=0.0, row_dependent=True, sharpness=0.5), "random@4", "suffix@4")
    samples = list(measure(bench, items(12)))
    choice = choose(bench.configurations, samples)
    assert choice is None or choice.configuration.plain


def test_candidates_are_what_the_model_has() -> None:
    names = [one.name for one in candidates(runner(TickingTarget()).engine)]
    assert names[:2] == ["plain", "cascade"]
    assert "suffix@8" in names
    assert "table" not in names, "no table is shipped for the toy"
