"""How much the rules accept: published values, their order, and the bound that no lossless rule can pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import (
    Shape,
    ToyLaw,
    candidate_law,
    chain_shape,
    enumerate_law,
    expected_accepted,
    maximum_acceptance,
    random_model,
    sampler,
    step,
)
from sooner.protocols import Coins, Law
from sooner.types import Draft, Probabilities, Verdict
from sooner.verify.block import BlockVerifier
from sooner.verify.lenience import LenienceVerifier
from sooner.verify.rejection import RejectionVerifier

REJECTION, BLOCK = RejectionVerifier(), BlockVerifier()
seeds = st.integers(0, 10**6)


def test_the_published_toy_of_block_verification() -> None:
    """Sun et al. 2403.10444, section 2: two tokens, two drafts."""
    p, q = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
    drafting = sampler(lambda context: q, chain_shape(2))
    assert expected_accepted(REJECTION, lambda context: p, drafting) == pytest.approx(10 / 9, abs=1e-12)
    assert expected_accepted(BLOCK, lambda context: p, drafting) == pytest.approx(11 / 9, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, depth=st.integers(1, 3), vocab_size=st.integers(2, 4))
def test_block_never_accepts_less_than_rejection_on_chains(seed: int, depth: int, vocab_size: int) -> None:
    model, q = random_model(seed, vocab_size), random_model(seed + 1, vocab_size)
    drafting = sampler(q, chain_shape(depth))
    token, block = (expected_accepted(verifier, model, drafting) for verifier in (REJECTION, BLOCK))
    assert block >= token - 1e-12
    if depth == 1:
        assert block == pytest.approx(token, abs=1e-12)


def test_block_accepts_more_somewhere() -> None:
    """So that the comparison above is not one of a rule with itself."""
    gains = []
    for shape in (chain_shape(3), (((), ()), ((),))):
        for seed in range(4):
            model, q = random_model(seed, 3), random_model(seed + 50, 3)
            drafting = sampler(q, shape)
            gains.append(expected_accepted(BLOCK, model, drafting) - expected_accepted(REJECTION, model, drafting))
    assert min(gains) > -1e-12
    assert max(gains) > 0.02


@settings(max_examples=30, deadline=None)
@given(seed=seeds, depth=st.integers(1, 3))
def test_block_gains_nothing_on_deterministic_drafts(seed: int, depth: int) -> None:
    model, q = random_model(seed, 3), random_model(seed + 1, 3)
    drafting = sampler(q, chain_shape(depth), deterministic=lambda context: True)
    token, block = (expected_accepted(verifier, model, drafting) for verifier in (REJECTION, BLOCK))
    assert block == pytest.approx(token, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, vocab_size=st.integers(2, 5))
def test_one_sampled_candidate_attains_the_bound(seed: int, vocab_size: int) -> None:
    model, q = random_model(seed, vocab_size), random_model(seed + 1, vocab_size)
    drafting = sampler(q, chain_shape(1))
    best = maximum_acceptance(model(()), candidate_law(drafting))
    assert best == pytest.approx(float(np.minimum(model(()), q(())).sum()), abs=1e-12)
    for verifier in (REJECTION, BLOCK):
        assert expected_accepted(verifier, model, drafting) == pytest.approx(best, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, vocab_size=st.integers(2, 5), width=st.integers(1, 3), fixed=st.booleans())
def test_no_rule_passes_the_bound(*, seed: int, vocab_size: int, width: int, fixed: bool) -> None:
    model, q = random_model(seed, vocab_size), random_model(seed + 1, vocab_size)
    shape: Shape = ((),) * width
    drafting = sampler(q, shape, deterministic=lambda context: fixed)
    best = maximum_acceptance(model(()), candidate_law(drafting))
    for verifier in (REJECTION, BLOCK):
        accepted = expected_accepted(verifier, model, drafting)
        assert accepted <= best + 1e-12
        if fixed:  # the target's own draw is the best rule there
            assert accepted == pytest.approx(best, abs=1e-12)


def test_recursive_rejection_reproduces_the_worked_value() -> None:
    """Two draws without replacement, by hand: p = (.5, .3, .2), q = (.2, .3, .5)."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    # First draws 0 and 1 are accepted (.5). First draw 2 (.5) is accepted at .2/.5; else all that is left of p is
    # token 0, and the second draw from (.4, .6, 0) carries it with .4.
    by_hand = 0.5 + 0.5 * 0.4 + 0.5 * 0.6 * 0.4
    drafting = sampler(lambda context: q, ((), ()))
    assert expected_accepted(REJECTION, lambda context: p, drafting) == pytest.approx(by_hand, abs=1e-12)


class AcceptsAll:
    """A control: keeps every first child."""

    name = "all"
    lossless = False

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        return Verdict((0,), coins.draw(law(0).p))


def test_the_bound_catches_a_rule_that_accepts_too_much() -> None:
    model, q = random_model(1, 4), random_model(2, 4)
    drafting = sampler(q, chain_shape(1))
    assert expected_accepted(AcceptsAll(), model, drafting) > maximum_acceptance(model(()), candidate_law(drafting))


def test_lenience_buys_acceptance_as_published() -> None:
    """One token: acceptance is sum min(p / l, q) (Leviathan et al., appendix A.5)."""
    p, q = random_model(4, 5)(()), random_model(5, 5)(())
    drafting = sampler(lambda context: q, chain_shape(1))
    for lenience in (1.0, 0.5, 0.3, 0.1):
        accepted = expected_accepted(LenienceVerifier(lenience=lenience), lambda context: p, drafting)
        assert accepted == pytest.approx(float(np.minimum(p / lenience, q).sum()), abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, lenience=st.sampled_from([1.0, 0.6, 0.2]), width=st.integers(1, 3), fixed=st.booleans())
def test_lenience_keeps_its_bound(*, seed: int, lenience: float, width: int, fixed: bool) -> None:
    """No token comes out more often than p / lenience; at 1 the law is the target's."""
    p, q = random_model(seed, 4)(()), random_model(seed + 1, 4)(())
    drafting = sampler(lambda context: q, ((),) * width, deterministic=lambda context: fixed)
    law = enumerate_law(
        lambda coins: step(LenienceVerifier(lenience=lenience), lambda context: p, drafting, (), coins)[0]
    )
    first: Probabilities = np.array([law.get(token, 0.0) for token in range(4)])
    assert (first <= p / lenience + 1e-12).all()
    if lenience == 1.0:
        assert first == pytest.approx(p, abs=1e-12)


def test_toy_laws_refuse_the_coupled_draw() -> None:
    with pytest.raises(AssertionError):
        ToyLaw(np.ones(1)).draw()
