"""The distribution law: what `rejection` and `block` emit follows the target exactly, by enumeration of all coins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import (
    Drafting,
    Model,
    Shape,
    Tokens,
    chain_shape,
    chained_steps,
    enumerate_law,
    random_model,
    sampler,
    total_variation,
    two_steps,
)
from sooner import tree
from sooner.protocols import Coins, Law
from sooner.types import ROOT, Draft, Probabilities, Verdict
from sooner.verify import RULES, create_verifier
from sooner.verify.block import BlockVerifier
from sooner.verify.rejection import RejectionVerifier
from sooner.verify.residual import residual

EXACT = 1e-12
RATIO_RULES = ("rejection", "block")
PAIR: Shape = ((), ())
FORK: Shape = (((), ()), ((),))
BROOM: Shape = ((((),),), ())
TREES = {"chain 1": chain_shape(1), "chain 2": chain_shape(2), "pair": PAIR, "fork": FORK, "broom": BROOM}


def sampled_somewhere(seed: int) -> Callable[[Tokens], bool]:
    """Deterministic below about half of all contexts."""
    return lambda context: bool(np.random.default_rng([seed, 77, *context]).random() < 0.5)


@pytest.mark.parametrize("rule", RATIO_RULES)
@pytest.mark.parametrize("shape", TREES.values(), ids=TREES)
def test_two_steps_emit_the_targets_joint_law(rule: str, shape: Shape) -> None:
    model, q = random_model(1, 3), random_model(101, 3)
    law = chained_steps(create_verifier(rule), model, sampler(q, shape))
    assert total_variation(law, model, 3) < EXACT


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_two_steps_in_one_enumeration(rule: str) -> None:
    """Without the shortcut that equal texts share their continuation."""
    model, q = random_model(1, 2), random_model(2, 2)
    law = two_steps(create_verifier(rule), model, sampler(q, chain_shape(2)))
    assert total_variation(law, model, 2) < EXACT


@pytest.mark.parametrize("rule", RATIO_RULES)
@pytest.mark.parametrize(("vocab_size", "depth"), [(5, 3), (4, 3), (5, 2)])
def test_long_chains_over_five_tokens(rule: str, vocab_size: int, depth: int) -> None:
    model, q = random_model(5, vocab_size, sparse=0.2), random_model(6, vocab_size, sparse=0.2)
    law = chained_steps(create_verifier(rule), model, sampler(q, chain_shape(depth)), steps=1)
    assert total_variation(law, model, vocab_size) < EXACT


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rule=st.sampled_from(RATIO_RULES),
    vocab_size=st.integers(2, 4),
    shape=st.recursive(st.just(()), lambda below: st.lists(below, max_size=2).map(tuple), max_leaves=3),
    sparse=st.sampled_from([0.0, 0.4]),
    mixed=st.booleans(),
)
def test_any_shape_sampled_or_not(
    *, seed: int, rule: str, vocab_size: int, shape: Shape, sparse: float, mixed: bool
) -> None:
    """Also where q = 0 < p, where p = 0 < q, and where sampled and deterministic parents meet in one tree."""
    model, q = random_model(seed, vocab_size, sparse=sparse), random_model(seed + 1, vocab_size, sparse=sparse)
    drafting = sampler(q, shape, deterministic=sampled_somewhere(seed) if mixed else lambda context: False)
    law = chained_steps(create_verifier(rule), model, drafting, steps=1)
    assert total_variation(law, model, vocab_size) < EXACT


ROWS = {
    "p equals q": ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
    "disjoint": ([0.6, 0.4, 0.0, 0.0], [0.0, 0.0, 0.7, 0.3]),
    "one-hot q": ([0.2, 0.3, 0.5], [0.0, 1.0, 0.0]),
    "one-hot p": ([0.0, 1.0, 0.0], [0.5, 0.25, 0.25]),
    "both one-hot, equal": ([0.0, 1.0, 0.0], [0.0, 1.0, 0.0]),
    "both one-hot, unequal": ([0.0, 1.0, 0.0], [1.0, 0.0, 0.0]),
    "q zero where p is not": ([0.5, 0.3, 0.2], [0.0, 0.4, 0.6]),
    "all tied": ([0.25] * 4, [0.25] * 4),
    "p tied": ([0.25] * 4, [0.1, 0.2, 0.3, 0.4]),
    "one ulp apart": ([1 / 3, 1 / 3, 1 / 3], [np.nextafter(1 / 3, 1), 1 / 3, np.nextafter(1 / 3, 0)]),
    "tiny q": ([0.5, 0.5], [1e-300, 1.0]),
}


@pytest.mark.parametrize("rule", RATIO_RULES)
@pytest.mark.parametrize("shape", [chain_shape(2), PAIR, FORK], ids=["chain", "pair", "fork"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_adversarial_pairs(rule: str, shape: Shape, rows: tuple[list[float], list[float]]) -> None:
    p, q = (np.array(row) for row in rows)
    law = chained_steps(create_verifier(rule), lambda context: p, sampler(lambda context: q, shape), steps=1)
    assert total_variation(law, lambda context: p, len(p)) < EXACT


def test_merged_deterministic_drafts_are_exact_under_ratio_rules() -> None:
    model = random_model(3, 4)
    draft = tree.merge([tree.chain((0, 1), 0.5, "a"), tree.chain((0, 2), 0.5, "b"), tree.chain((3,), 0.5, "c")])
    for rule in RATIO_RULES:
        law = chained_steps(create_verifier(rule), model, lambda context, coins: draft)
        assert total_variation(law, model, 4) < EXACT


def test_shape_may_be_cut_before_verification() -> None:
    """Cutting a sampled draft by shape alone keeps the law; so the controller and the engine may."""
    model, q = random_model(8, 3), random_model(9, 3)
    full = sampler(q, FORK)
    for budget in range(6):
        for rule in RATIO_RULES:

            def cut_draft(context: Tokens, coins: Coins, budget: int = budget) -> Draft:
                return tree.sanitise(full(context, coins), 3, depth=9, budget=budget)

            cut = chained_steps(create_verifier(rule), model, cut_draft, steps=1)
            assert total_variation(cut, model, 3) < EXACT


# Negative controls: each fault is one that shipped somewhere; the same checker must see it.


class DropsByValue(RejectionVerifier):
    """Drops a sampled child that q holds unlikely, then draws from p as if nothing had been drafted."""

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        keep = [i for i in range(len(draft)) if draft.q[draft.parents[i]][draft.tokens[i]] > 0.3]
        kept = tree.prune(draft, keep)
        verdict = super().verify(kept, lambda node: law(_original(draft, kept, node)), coins)
        return Verdict(draft.path(_original(draft, kept, verdict.path[-1] if verdict.path else ROOT)), verdict.token)


def _original(draft: Draft, kept: Draft, node: int) -> int:
    at = ROOT
    for below in kept.path(node):
        child = draft.child(at, kept.tokens[below])
        assert child is not None
        at = child
    return at


class UnprocessedBonus(BlockVerifier):
    """Draws the bonus token from the unprocessed row: here, from its square, as at another temperature."""

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        verdict = super().verify(draft, law, coins)
        if len(verdict.path) < len(draft):
            return verdict
        return Verdict(verdict.path, coins.draw(law(verdict.path[-1]).p ** 2))


class UncappedJointRatio(RejectionVerifier):
    """Accepts the whole chain by its uncapped joint ratio, as a published implementation does at its last token."""

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        ratio = 1.0
        rows: list[tuple[Probabilities, Probabilities]] = []
        for i, token in enumerate(draft.tokens):
            p, q = law(i - 1).p, draft.q[i - 1]
            rows.append((p, q))
            ratio *= float(p[token] / q[token])
        if coins.accept(ratio):
            return Verdict(tuple(range(len(draft))), coins.draw(law(len(draft) - 1).p))
        return Verdict((), coins.draw(residual(*rows[0])))


def greedy_with_soft_q(q: Model, shape: Shape) -> Drafting:
    """Drafts the likeliest tokens and claims that they were sampled."""
    fixed = sampler(q, shape, deterministic=lambda context: True)

    def draw(context: Tokens, coins: Coins) -> Draft:
        draft = fixed(context, coins)
        rows = {parent: q(_text(draft, parent)) for parent in set(draft.parents)}
        return Draft(draft.tokens, draft.parents, draft.confidence, draft.sources, rows)

    def _text(draft: Draft, node: int) -> Tokens:
        return tuple(draft.tokens[i] for i in draft.path(node))

    return draw


def test_checker_catches_biased_verifiers() -> None:
    model, q = random_model(21, 3), random_model(22, 3)
    drafting = sampler(q, chain_shape(2))
    for verifier in (DropsByValue(), UnprocessedBonus(), UncappedJointRatio()):
        law = chained_steps(verifier, model, drafting, steps=1)
        assert sum(law.values()) == pytest.approx(1.0)
        assert total_variation(law, model, 3) > 1e-3, type(verifier).__name__


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_checker_catches_a_false_q(rule: str) -> None:
    model, q = random_model(21, 3), random_model(22, 3)
    law = chained_steps(create_verifier(rule), model, greedy_with_soft_q(q, chain_shape(2)), steps=1)
    assert total_variation(law, model, 3) > 1e-2


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_checker_catches_draft_and_coins_that_share_noise(rule: str) -> None:
    """The fault of reusing one uniform for the draft and for the acceptance test."""
    p, q = np.array([0.1, 0.5, 0.4]), np.array([0.5, 0.4, 0.1])

    class Shared:
        def __init__(self, coins: Coins) -> None:
            self._coins = coins
            self._last = 0

        def draw(self, weights: Probabilities) -> int:
            self._last = self._coins.draw(weights)
            return self._last

        def accept(self, numerator: float, denominator: float = 1.0) -> bool:
            return self._last == 1 and numerator > 0

    drafting = sampler(lambda context: q, chain_shape(1))

    def play(coins: Coins) -> Tokens:
        shared = Shared(coins)
        draft = drafting((), shared)
        verdict = create_verifier(rule).verify(draft, lambda node: _Row(p), shared)
        return (*(draft.tokens[i] for i in verdict.path), verdict.token)

    assert total_variation(enumerate_law(play), lambda context: p, 3) > 1e-2


class _Row:
    def __init__(self, p: Probabilities) -> None:
        self.p = p

    def draw(self) -> int:
        raise AssertionError("a ratio rule must not touch the coupled draw")


def test_lossy_rules_are_not_exact() -> None:
    """The checker tells lossless from lossy, and the flags say the same."""
    model, q = random_model(31, 3), random_model(32, 3)
    for rule in RULES:
        if rule == "coupled":
            continue
        law = chained_steps(create_verifier(rule), model, sampler(q, chain_shape(2)), steps=1)
        exact = total_variation(law, model, 3) < EXACT
        assert exact == create_verifier(rule).lossless
