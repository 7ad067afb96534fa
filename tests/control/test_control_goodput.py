"""What is worth scoring: never more than pays on the curve, best first across sequences, and rarely when it fails."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner import tree
from sooner.control.allowance import Allowance
from sooner.control.cost import NOMINAL, CostCurve, measure_cost
from sooner.control.goodput import GoodputController
from sooner.control.price import Price
from sooner.protocols import Context
from sooner.targets.toy import ToyTarget
from sooner.types import ROOT, Draft, Sampling, Step

STEEP = CostCurve(rows=(2, 3, 10), ms=(10.0, 14.0, 42.0))
FLAT = CostCurve(rows=(2, 16), ms=(10.0, 11.0))


def context(id: int = 0) -> Context:
    return Context(id=id, tokens=[1, 2, 3], prompt_length=2, budget=32, sampling=Sampling())


def draft(confidence: list[float], parents: list[int] | None = None) -> Draft:
    n = len(confidence)
    parents = list(range(-1, n - 1)) if parents is None else parents
    return Draft(tuple(range(5, 5 + n)), tuple(parents), tuple(confidence), ("x",) * n)


def test_the_padding_row_is_free_and_dear_rows_are_not_taken() -> None:
    (kept,) = GoodputController(STEEP).select([context()], [draft([0.3, 0.9, 0.9])])
    assert len(kept) == 1
    (kept,) = GoodputController(FLAT).select([context()], [draft([0.3, 0.9, 0.9])])
    assert len(kept) == 3
    (kept,) = GoodputController(FLAT).select([context()], [draft([0.01])])
    assert len(kept) == 0


def test_where_a_plain_pass_has_one_row_the_first_guess_has_its_price() -> None:
    steep = CostCurve(rows=(1, 2, 8), ms=(10.0, 15.0, 45.0))
    (kept,) = GoodputController(steep, least_rows=1).select([context()], [draft([0.3])])
    assert len(kept) == 0
    (kept,) = GoodputController(steep, least_rows=1).select([context()], [draft([0.9])])
    assert len(kept) == 1
    (kept,) = GoodputController(steep).select([context()], [draft([0.3])])
    assert len(kept) == 1


def test_sequences_compete_for_the_rows_of_one_pass() -> None:
    curve = CostCurve(rows=(4, 6, 20), ms=(10.0, 10.5, 50.0))
    kept = GoodputController(curve).select([context(0), context(1)], [draft([0.9, 0.9, 0.9]), draft([0.2, 0.2])])
    assert len(kept[0]) > len(kept[1])


@given(
    confidences=st.lists(st.lists(st.floats(0, 1), max_size=5), min_size=1, max_size=3),
    slopes=st.lists(st.floats(0.01, 5.0), min_size=3, max_size=3),
)
@settings(max_examples=80, deadline=None)
def test_no_other_choice_of_chain_lengths_promises_more(confidences: list[list[float]], slopes: list[float]) -> None:
    """Exhaustive search over prefixes of chains; the curve is convex, where best-first is optimal."""
    ms = np.cumsum([10.0, *sorted(slopes)])
    curve = CostCurve(rows=(2, 6, 12, 20), ms=tuple(float(x) for x in ms))
    drafts = [draft(c) for c in confidences]
    controller = GoodputController(curve)
    kept = controller.select([context(i) for i in range(len(drafts))], drafts)

    def gain(lengths: tuple[int, ...]) -> float:
        """Expected tokens less what the time is worth at a plain step's pace: what is maximised at first."""
        expected = sum(
            1 + sum(float(np.prod(c[: k + 1])) for k in range(n)) for c, n in zip(confidences, lengths, strict=True)
        )
        rows = sum(max(2, n + 1) for n in lengths)
        return float(expected - curve(np.array([float(rows)]), len(lengths), np.zeros(1))[0] / (ms[0] + 0.5))

    best = max(itertools.product(*(range(len(c) + 1) for c in confidences)), key=gain)
    unlikely = 0.02 * sum(map(len, confidences))  # nodes this unlikely are not looked at
    assert gain(tuple(map(len, kept))) >= gain(best) - unlikely - 1e-9


def test_a_target_too_small_to_measure_gets_the_nominal_curve() -> None:
    assert measure_cost(ToyTarget(64, context=24)) == NOMINAL
    assert measure_cost(ToyTarget(64, context=80), repeats=1) != NOMINAL


def test_a_branch_pays_for_the_rows_it_feeds_again() -> None:
    fork = draft([0.5, 0.45], [ROOT, ROOT])
    cheap = CostCurve(rows=(2, 16), ms=(10.0, 13.0))
    dear = CostCurve(rows=(2, 16), ms=(10.0, 13.0), branch_ms=6.0)
    assert len(GoodputController(cheap).select([context()], [fork])[0]) == 2
    assert len(GoodputController(dear).select([context()], [fork])[0]) == 1


def test_a_change_of_width_must_pay_for_itself() -> None:
    curve = CostCurve(rows=(2, 8, 16), ms=(10.0, 12.0, 16.0), change_ms=40.0)
    controller = GoodputController(curve)
    controller.price.width = 2.0
    assert len(controller.select([context()], [draft([0.5, 0.5, 0.5])])[0]) == 1
    controller.price.width = 8.0
    assert len(controller.select([context()], [draft([0.5, 0.5, 0.5])])[0]) == 3


def test_sampled_drafts_are_kept_whole() -> None:
    sampled = tree.chain([3, 4], 0.001, "s", q=[np.ones(8) / 8] * 2)
    assert GoodputController(STEEP).select([context()], [sampled]) == [sampled]


def lost(controller: GoodputController, steps: int, right: bool = False) -> tuple[float, int]:
    """The share of plain time that drafts claimed at .9 cost over ``steps`` passes, and how often one was asked for."""
    spent = 0.0
    asked = 0
    for _ in range(steps):
        (budget,) = controller.budgets([context()])
        kept = Draft((), (), (), ())
        if budget:
            asked += 1
            (kept,) = controller.select([context()], [draft([0.9] * 6)])
        ms = float(STEEP(np.array([max(2.0, 1.0 + len(kept))]), 1, np.zeros(1))[0])
        spent += ms - STEEP.ms[0]
        accepted = len(kept) if right else 0
        tokens, sources = tuple(range(5, 6 + accepted)), ("x",) * accepted + ("target",)
        rows = 1 + len(kept)
        step = Step(0, 0, 1, kept, tuple(range(accepted)), tokens, sources, "", pass_rows=rows, score_ms=ms)
        controller.observe(step)
    return spent / (steps * STEEP.ms[0]), asked


def test_drafts_that_promise_and_never_hold_cost_a_bounded_share(monkeypatch: pytest.MonkeyPatch) -> None:
    share, asked = lost(GoodputController(STEEP), 600)
    assert asked  # not at once, and not never again
    assert 0.0 < share < 0.025
    assert lost(GoodputController(STEEP), 600, right=True)[1] == 600
    monkeypatch.setattr(Allowance, "open", True)
    assert lost(GoodputController(STEEP), 600)[0] > 0.3  # the negative control: what unbounded trust costs


def test_what_a_user_expects_is_tried_whatever_guesses_have_lost() -> None:
    controller = GoodputController(STEEP)
    lost(controller, 20)
    told = replace(context(1), expected=(1, 2))
    assert controller.budgets([context(), told])[0] == 0
    assert controller.budgets([context(), told])[1] > 0


def test_an_accident_does_not_stop_drafting() -> None:
    allowance = Allowance()
    allowance.passed(10.0)
    allowance.drafted(500.0, 0.0)
    assert allowance.open
    allowance.drafted(0.0, 500.0)
    assert not allowance.open


def test_after_a_winning_streak_little_more_may_be_lost() -> None:
    controller = GoodputController(STEEP)
    lost(controller, 50, right=True)
    assert lost(controller, 300)[0] < 0.04


def test_a_curve_is_measured_stored_and_read_back() -> None:
    target = ToyTarget(64)
    curve = measure_cost(target, repeats=1)
    assert not target.sessions
    assert list(curve.ms) == sorted(curve.ms)
    assert CostCurve.from_dict(curve.to_dict()) == curve
    assert FLAT.break_even(16) == pytest.approx(0.1)
    assert curve.context_ms >= 0.0
    assert curve.context > 0
    with pytest.raises(ValueError, match="each of at least two"):
        CostCurve.from_dict(curve.to_dict() | {"rows": [2], "ms": [1.0]})
    with pytest.raises(KeyError, match="context_ms"):
        CostCurve.from_dict({name: value for name, value in curve.to_dict().items() if name != "context_ms"})


def test_the_price_pads_to_ready_widths_and_follows_what_passes_take() -> None:
    curve = CostCurve(rows=(2, 8, 16), ms=(10.0, 12.0, 16.0), change_ms=5.0, context_ms=0.01, context=100)
    widths: list[int] = []
    price = Price(curve, lambda: widths)
    rows, none = np.array([2.0, 3.0, 5.0, 9.0, 17.0]), np.zeros(5)
    assert price.pad(rows)[0].tolist() == rows.tolist()
    widths += [4, 8, 16]
    price.refresh()
    padded, ready = price.pad(rows)
    assert padded.tolist() == [4.0, 4.0, 8.0, 16.0, 17.0]
    assert ready.tolist() == [True] * 4 + [False]
    before = price.steady(padded, 1, none)
    assert before[2] < curve(padded, 1, none)[2]  # a ready-made pass infers no shapes
    far = price.steady(padded, 1, none, 300.0) - before
    assert far[4] == pytest.approx(17 * 200 * 0.01)  # what context costs, by the row
    for _ in range(300):
        price.observe(8.0, float(price.steady(np.array([8.0]), 1, np.zeros(1))[0]), 20.0)
    after = price.steady(padded, 1, none)
    assert after[2] == pytest.approx(20.0, rel=0.01)
    assert after[0] > before[0]  # the machine got slower
    assert after[2] / before[2] > after[0] / before[0]  # and this width more than others


def test_the_controller_takes_a_ready_width_whole() -> None:
    curve = CostCurve(rows=(2, 8, 16), ms=(10.0, 12.0, 16.0), change_ms=40.0)
    controller = GoodputController(Price(curve, lambda: (2, 4, 8)))
    (kept,) = controller.select([context()], [draft([0.9, 0.9, 0.9, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])])
    assert len(kept) == 7  # eight rows: ready-made, where nine would change the width


def test_a_pass_that_read_a_prompt_teaches_no_price() -> None:
    controller = GoodputController(Price(FLAT))
    for rows, learned in ((40, False), (2, True)):
        before = controller.price.steady(np.array([2.0]), 1, np.zeros(1))[0]
        controller.budgets([context()])
        controller.select([context()], [draft([0.5])])
        step = Step(0, 0, 1, draft([0.5]), (0,), (5, 9), ("x", "target"), "", pass_rows=rows, score_ms=30.0)
        controller.observe(step)
        after = controller.price.steady(np.array([2.0]), 1, np.zeros(1))[0]
        assert (after > before) == learned
