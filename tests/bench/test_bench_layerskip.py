"""The search for a skip set, on models whose truth is known: it finds it, ends in time, goes on where it stopped."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from sooner.bench.layerskip import Costs, Score, Search, Skip, predicted, to_record

NAMES = tuple(f"{layer}{half}" for layer in range(12) for half in "am")
REDUNDANT = frozenset(name for name in NAMES if 3 <= int(name[:-1]) <= 9) - {"5a", "8m"}
CHEAP_ROWS = tuple(1.0 + 0.03 * k for k in range(9))
COSTS = Costs(whole=0.9, attention=0.035, mlp=0.035, least=0.06, verify=CHEAP_ROWS)
SMALL = Costs(whole=0.9, attention=0.015, mlp=0.01, least=0.3, verify=CHEAP_ROWS)


class Model:
    """Each sublayer that is left out costs its share of the agreement; measured on ``trials`` tokens, to the token."""

    def __init__(self, redundant: Skip = REDUNDANT, damage: float = 0.15, trials: int = 400) -> None:
        self.redundant, self.damage, self.trials = redundant, damage, trials
        self.measured: list[Skip] = []
        self.weighed = 0
        self.now = 0.0

    def agree(self, skip: Skip, seen: bool) -> Score:
        self.now += 1.0
        if seen:
            self.measured.append(skip)
        else:
            self.weighed += 1
        left = (1.0 - self.damage) ** len(skip - self.redundant)
        return round(self.trials * left * (0.999 ** len(skip))), self.trials

    def search(self, costs: Costs = COSTS, scores: dict[str, Score] | None = None) -> Search:
        return Search(NAMES, self.agree, costs, scores if scores is not None else {}, lambda: self.now)


def test_everything_that_is_redundant_is_left_out_and_nothing_else() -> None:
    model = Model()
    search = model.search()
    list(search.run(1e9))
    found = search.found()
    assert found.skip == REDUNDANT
    assert found.text == "3-4+5m+6-7+8a+9"
    assert found.finished
    assert found.speed_up > 1.3
    assert model.weighed == 1, "weighed on texts that the search did not see"
    assert len(model.measured) == len(set(model.measured)) == found.tried


def test_where_every_sublayer_counts_nothing_is_promised_and_little_is_tried() -> None:
    model = Model(frozenset(), damage=0.25)
    search = model.search(SMALL)
    list(search.run(1e9))
    assert search.found().speed_up < 1.0
    assert len(model.measured) <= 2 * len(NAMES)


def test_some_attention_always_stays() -> None:
    model = Model(frozenset(NAMES))
    search = model.search()
    list(search.run(1e9))
    for skip in model.measured:
        assert any(name.endswith("a") and name not in skip for name in NAMES)
    assert len(search.found().skip) > len(NAMES) * 0.8


def test_time_is_kept_and_the_search_goes_on_where_it_stopped() -> None:
    whole = Model()
    reference = whole.search()
    list(reference.run(1e9))
    pieces, kept, runs = Model(), dict[str, Score](), 0
    while True:
        runs += 1
        before = pieces.now
        search = pieces.search(scores=kept)
        list(search.run(7.0))
        assert pieces.now - before <= 7.0
        kept = {
            text: (hits, trials) for text, (hits, trials) in json.loads(json.dumps(to_record(search.scores))).items()
        }
        if search.found().finished:
            break
    assert runs > 3
    assert pieces.measured == whole.measured, "the same sets in the same order, none of them twice"
    assert search.found() == reference.found()


def test_a_search_without_time_says_so() -> None:
    search = Model().search()
    assert list(search.run(0.0)) == []
    found = search.found()
    assert (found.skip, found.text, found.tried, found.finished) == (frozenset(), "", 0, False)


@pytest.mark.parametrize(("agreement", "cost"), list(product([0.0, 0.4, 0.9, 1.0], [0.1, 0.5, 1.0])))
def test_the_prediction_is_what_a_simulation_gives(agreement: float, cost: float) -> None:
    speed, depth = predicted(agreement, cost, CHEAP_ROWS)
    rng = np.random.default_rng(0)
    rights = (rng.random((20_000, depth)) < agreement).cumprod(axis=1).sum(axis=1)
    assert speed == pytest.approx((1.0 + rights.mean()) / (CHEAP_ROWS[depth] + depth * cost), rel=0.02)
    for k in range(1, len(CHEAP_ROWS)):
        tokens = sum(agreement**i for i in range(k + 1))
        assert tokens / (CHEAP_ROWS[k] + k * cost) <= speed + 1e-12
