"""``--compare``: both sides in turns, the same text, and the exit code when it is not."""

from __future__ import annotations

import json

from commandline import Toy, invoke
from sooner.cli.compare import compare
from sooner.targets.toy import ToyTarget
from toy import V

RUN = ("run", "abcabcabc", "--max-tokens", "40", "--ignore-eos", "-t", "0.8")


def test_the_figures_of_both_sides_and_the_verdict() -> None:
    result = invoke(*RUN, "--compare", "2")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()[1:3]] == ["plain", "suffix+recycle"]
    assert "over 2 pairs of 40 tokens" in result.out
    assert "identical: yes" in result.out


def test_without_a_number_three_pairs_also_before_the_prompt() -> None:
    value = json.loads(invoke("run", "--compare", "abc", *RUN[2:], "--json").out)
    assert value["ratio"]["pairs"] == 3
    assert len(value["plain"]["total_ms"]) == len(value["drafted"]["total_ms"]) == 3
    assert value["identical"] is True
    assert value["plain"]["drafter"] == "none"
    assert value["drafted"]["drafter"] == "suffix+recycle"
    assert value["ratio"]["low"] <= value["ratio"]["value"] <= value["ratio"]["high"]


def test_a_target_whose_rows_depend_on_their_neighbours_is_caught() -> None:
    """Negative control: the comparison can say no."""
    toy = Toy(lambda: ToyTarget(V, row_dependent=True, sharpness=0.5))
    result = invoke(*RUN, "--compare", "1", "--draft", "random", "--seed", "1", load=toy)
    assert result.code == 1
    assert "identical: no" in result.out
    assert "sooner doctor" in result.err


def test_a_rule_that_keeps_only_the_distribution_says_so() -> None:
    result = invoke(*RUN, "--compare", "1", "--draft", "self", "--seed", "1", "--verify", "rejection")
    assert result.code == 1
    assert "rejection keeps the distribution, not the text" in result.err


def test_runs_alternate_under_one_seed_and_find_nothing_cached() -> None:
    engine = Toy()(None, draft="suffix", budget=4, progress=lambda _: None)
    runs = list(compare(engine, engine.request("abcabc", max_tokens=9, temperature=1.0), 2))
    assert [run.speculation.drafter for run in runs] == ["none", "suffix"] * 3
    assert len({run.seed for run in runs}) == 1
    assert {run.usage.cached_tokens for run in runs} == {0}
