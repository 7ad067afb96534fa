"""The distribution audit: exact rules are cleared, biased ones are caught, every time."""

from __future__ import annotations

import numpy as np
import pytest

from sooner.audit import law
from sooner.audit.controls import PlainResidual
from sooner.audit.law import CONTROLS, SAMPLED_CONTROL, SHAPES, Draws, RememberedRows, check_rule, exact_laws
from sooner.targets.toy import ToyTarget
from sooner.types import Draft, Work
from toy import V

PROMPT = [1, 2, 3]
TESTS = 12


def draws(seed: int = 0) -> Draws:
    target = ToyTarget(V, seed=seed)
    return Draws(RememberedRows(target, PROMPT))


def test_enumeration_clears_the_exact_rules_and_catches_the_biased_ones() -> None:
    laws = exact_laws(["rejection", "block"])
    assert {one.rule for one in laws if not one.biased} == {"rejection", "block"}
    assert {one.rule for one in laws if one.biased} == set(CONTROLS)
    assert all(one.as_it_should_be for one in laws)
    assert max(one.distance for one in laws if not one.biased) < 1e-12
    assert min(one.distance for one in laws if one.biased) > 0.05


def test_enumeration_would_say_so_of_a_lossy_rule() -> None:
    (lossy, *_) = exact_laws(["lenience"])
    assert not lossy.as_it_should_be


def test_twenty_models_the_controls_are_caught_every_time_and_a_sound_rule_is_cleared() -> None:
    cleared = 0
    for seed in range(20):
        sample = draws(seed)
        rule, shape = ("rejection", "block")[seed % 2], tuple(SHAPES)[seed // 2 % 2]
        cleared += check_rule(sample, rule, shape, count=100, seed=seed, among=TESTS).as_it_should_be
        caught = check_rule(sample, *SAMPLED_CONTROL, count=250, seed=seed, among=TESTS)
        assert caught.biased
        assert caught.as_it_should_be, (seed, caught.tests)
    assert cleared >= 19


def test_a_rule_that_is_biased_and_does_not_say_so_is_found_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sneaky(PlainResidual):
        lossless = True

    monkeypatch.setattr(law, "create_verifier", lambda rule: Sneaky())
    found = check_rule(draws(), "rejection", "tree", count=500, among=TESTS)
    assert not found.as_it_should_be
    assert found.repeated, "a suspicion is checked on fresh seeds"
    assert found.draws == 1000


def test_both_acceptance_and_rejection_are_met_and_all_three_tests_count() -> None:
    found = check_rule(draws(), "rejection", "tree", count=200, among=TESTS)
    assert 0.3 < found.accepted < 1.7
    assert [test.name for test in found.tests] == ["first drafted token", "pairs", "first token of the second step"]
    assert all(test.df > 2 and test.n == 200 for test in found.tests)
    assert all(0 < test.alpha == pytest.approx(0.01 / TESTS) for test in found.tests)


def test_drafts_are_honest_and_wrong() -> None:
    sample = draws()
    text = (0,)
    p, q = sample.law(text), sample.q(text)
    assert q.sum() == pytest.approx(1.0)
    assert sum(p.values()) == pytest.approx(1.0)
    assert any(q[i] > 0 and i not in p for i in range(V)), "mass where the target has none"
    assert 0.05 < sum(abs(q[i] - p.get(i, 0.0)) for i in range(V)) / 2 < 0.9


def test_remembered_rows_are_the_target_s_and_scored_once() -> None:
    class Counting(ToyTarget):
        passes = 0

        def score(self, works):  # type: ignore[no-untyped-def]  # as the toy's
            Counting.passes += 1
            return super().score(works)

    target = Counting(V)
    rows = RememberedRows(target, PROMPT)
    draft = Draft((4, 5, 6), (-1, 0, -1), (0.5,) * 3, ("x",) * 3)
    before = Counting.passes
    first = rows.rows((0,), draft).logits
    assert Counting.passes == before + 1
    again = rows.rows((0,), draft).logits
    assert Counting.passes == before + 1
    fresh = RememberedRows(ToyTarget(V), PROMPT)
    wanted = [fresh.row((0, *path)) for path in ((), (4,), (4, 5), (6,))]
    assert np.array_equal(first, again)
    assert np.array_equal(first, np.stack(wanted))
    rows.close()
    assert target.used_tokens == 0


def test_large_vocabularies_are_cut_to_what_is_likely_and_the_rows_stay_the_model_s() -> None:
    target = ToyTarget(2000, sharpness=4.0)
    rows = RememberedRows(target, PROMPT)
    assert 64 <= rows.vocab_size <= 256
    assert list(rows.ids) == sorted(set(rows.ids.tolist()))
    (whole,) = ToyTarget(2000, sharpness=4.0).score([Work(ToyTarget(2000).open(), (1, 2, 3, int(rows.ids[7])))])
    assert np.array_equal(rows.row((0, 7)), whole.logits[0][rows.ids])
    assert int(np.argmax(rows.row((0,)))) in Draws(rows).law((0,))
