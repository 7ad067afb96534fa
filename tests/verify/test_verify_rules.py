"""What each rule does on given rows: the coupled identity, which rows are asked for, typical thresholds, options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import EnumeratingCoins, Laws, ToyLaw, emit, random_model
from sooner import tree
from sooner.errors import InvalidRequest
from sooner.noise import StepCoins
from sooner.protocols import Coins, Law, Verifier
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Probabilities, Sampling, Verdict
from sooner.verify import RULES, create_verifier

_ANY = np.full(4, 0.25)


class NoCoins:
    def accept(self, numerator: float, denominator: float = 1.0) -> bool:
        raise AssertionError("coupled verification must not touch coins")

    def draw(self, weights: Probabilities) -> int:
        raise AssertionError("coupled verification must not touch coins")


@st.composite
def drafts(pick: st.DrawFn, vocab_size: int = 4, most: int = 12) -> Draft:
    """Any tree with distinct siblings."""
    tokens: list[int] = []
    parents: list[int] = []
    for i in range(pick(st.integers(0, most))):
        parent, token = pick(st.integers(ROOT, i - 1)), pick(st.integers(0, vocab_size - 1))
        if parent < len(tokens) and (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
    n = len(tokens)
    return Draft(tuple(tokens), tuple(parents), (0.5,) * n, ("any",) * n)


def equals_plain_drawing(verifier: Verifier, text: list[int], draft: Draft) -> bool:
    """Whether a step emits what the target draws by itself; ``text[t]`` is its draw at output position t."""

    def law(node: int) -> Law:
        return ToyLaw(np.ones(4) / 4, token=text[len(draft.path(node))])

    verdict = verifier.verify(draft, law, NoCoins())
    out = emit(draft, verdict)
    return list(out) == text[: len(out)]


@settings(max_examples=200, deadline=None)
@given(text=st.lists(st.integers(0, 3), min_size=13, max_size=13), draft=drafts())
def test_coupled_emits_what_plain_drawing_would(text: list[int], draft: Draft) -> None:
    """A draft changes how many tokens a step gives, never which; and all that can be kept is kept."""
    verifier = create_verifier("coupled")
    assert equals_plain_drawing(verifier, text, draft)
    verdict = verifier.verify(draft, lambda node: ToyLaw(_ANY, text[len(draft.path(node))]), NoCoins())
    assert draft.child(verdict.path[-1] if verdict.path else ROOT, verdict.token) is None


class TrustsTheDraft:
    """A control: emits the first child whatever the target draws."""

    name = "trusts"
    lossless = False

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        return Verdict((0,), law(0).draw())


def test_the_identity_catches_a_rule_that_trusts_the_draft() -> None:
    assert equals_plain_drawing(TrustsTheDraft(), [1, 2], tree.chain((1,), 0.5, "any"))
    assert not equals_plain_drawing(TrustsTheDraft(), [0, 2], tree.chain((1,), 0.5, "any"))


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(draft=drafts(), seed=st.integers(0, 10**6))
def test_every_rule_walks_one_path_of_the_tree(rule: str, draft: Draft, seed: int) -> None:
    laws = Laws(random_model(seed, 4), (), draft)
    law = laws if rule != "coupled" else _Coupled(laws)
    verdict = create_verifier(rule).verify(draft, law, StepCoins(seed, 0))
    assert verdict.path == draft.path(verdict.path[-1] if verdict.path else ROOT)
    assert 0 <= verdict.token < 4


class _Coupled:
    def __init__(self, laws: Laws) -> None:
        self._laws = laws

    def __call__(self, node: int) -> Law:
        p = self._laws(node).p
        return ToyLaw(p, token=int(p.argmax()))


@pytest.mark.parametrize("rule", RULES)
def test_the_empty_draft_is_plain_decoding(rule: str) -> None:
    p = np.array([0.0, 1.0, 0.0])
    verdict = create_verifier(rule).verify(EMPTY_DRAFT, lambda node: ToyLaw(p, token=1), StepCoins(1, 0))
    assert verdict == Verdict((), 1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sampled", [False, True])
def test_every_rule_is_greedy_on_one_hot_rows(rule: str, sampled: bool) -> None:
    truth = (2, 0, 3, 1)
    for wrong_at in range(4):
        tokens = tuple((t + 1) % 4 if i == wrong_at else t for i, t in enumerate(truth[:3]))
        q = [np.full(4, 0.25)] * 3 if sampled else None
        draft = tree.chain(tokens, 0.5, "any", q=q)

        def law(node: int) -> Law:
            row = np.zeros(4)
            row[truth[node + 1]] = 1.0
            return ToyLaw(row, token=truth[node + 1])

        verdict = create_verifier(rule).verify(draft, law, StepCoins(7, wrong_at))
        assert emit(draft, verdict) == truth[: min(wrong_at, 3) + 1]


@pytest.mark.parametrize("rule", ["rejection", "lenience", "block"])
def test_hopeless_rows_are_not_asked_for(rule: str) -> None:
    """A drafted token of probability zero: nothing below it is computed."""
    p, q = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    draft = tree.chain((0, 0, 0), 0.5, "any", q=[q] * 3)
    laws = Laws(lambda context: p, (), draft)
    assert create_verifier(rule).verify(draft, laws, StepCoins(1, 0)) == Verdict((), 1)
    assert set(laws.asked) == {ROOT}


def test_long_chains_do_not_recurse() -> None:
    p = np.array([0.5, 0.5])
    draft = tree.chain((0,) * 1024, 0.5, "any", q=[p] * 1024)
    for rule in ("rejection", "block"):
        assert len(create_verifier(rule).verify(draft, lambda node: ToyLaw(p), StepCoins(1, 0)).path) == 1024


def test_typical_accepts_above_its_threshold_only() -> None:
    """Of a flat row (entropy ln 5) the threshold is delta / 5 = 0.06; of a peaked one epsilon = 0.09."""
    flat = np.full(5, 0.2)
    peaked = np.array([0.9, 0.08, 0.02, 0.0, 0.0])
    draft = tree.chain((4, 1), 0.5, "any")
    rows = {ROOT: flat, 0: peaked, 1: flat}
    verdict = create_verifier("typical").verify(draft, lambda node: ToyLaw(rows[node]), EnumeratingCoins([]))
    assert verdict == Verdict((0,), 0)
    lax = create_verifier("typical", epsilon=0.05)
    assert lax.verify(draft, lambda node: ToyLaw(rows[node]), EnumeratingCoins([])).path == (0, 1)


def test_typical_takes_the_longest_path() -> None:
    draft = tree.merge([tree.chain((0,), 0.5, "a"), tree.chain((1, 0), 0.5, "b"), tree.chain((2, 0), 0.5, "c")])
    flat = np.full(3, 1 / 3)
    verdict = create_verifier("typical").verify(draft, lambda node: ToyLaw(flat), EnumeratingCoins([2]))
    assert [draft.tokens[i] for i in verdict.path] == [1, 0]


@pytest.mark.parametrize(
    ("rule", "options", "param", "words"),
    [
        ("couple", {}, "verify", "did you mean coupled"),
        ("nothing like it", {}, "verify", "one of coupled, rejection, block, typical, lenience"),
        ("block", {"gamma": 1.0}, "gamma", "takes no options"),
        ("typical", {"eps": 0.1}, "eps", "epsilon, delta"),
        ("typical", {"epsilon": 0.0}, "epsilon", "between 0 and 1"),
        ("lenience", {"lenience": 1.5}, "lenience", "(0, 1]"),
        ("lenience:lenience=1.5", {}, "lenience", "(0, 1]"),
        ("typical:eps=0.1", {}, "eps", "epsilon, delta"),
        ("typical:epsilon=nan", {}, "epsilon", "between 0 and 1"),
        ("typical:epsilon", {}, "verify", "typical:epsilon=0.1,delta=0.2"),
        ("typical:epsilon=a", {}, "verify", "typical:epsilon=0.1,delta=0.2"),
        ("coupled:x=1", {}, "x", "takes no options"),
    ],
)
def test_bad_rules_and_options_are_named(rule: str, options: dict[str, float], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        create_verifier(rule, **options)
    assert caught.value.param == param
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_may_be_written_with_the_rule() -> None:
    draft = tree.chain((0,), 0.5, "a")
    p = np.array([0.2, 0.8])
    for rule, accepted in (("typical:epsilon=0.1,delta=0.5", (0,)), ("typical:epsilon=0.3,delta=0.9", ())):
        assert create_verifier(rule).verify(draft, lambda node: ToyLaw(p), EnumeratingCoins([1])).path == accepted
    nonsense: Any = 3
    for unread in ("typical:", "coupled:", ":", "typical ", nonsense):
        with pytest.raises(InvalidRequest, match="verify must be one of"):
            Sampling(verify=unread)
    assert Sampling(verify="typical:epsilon=0.1").verify == "typical:epsilon=0.1"


def test_only_the_opt_in_rules_are_lossy() -> None:
    assert {rule for rule in RULES if not create_verifier(rule).lossless} == {"typical", "lenience"}
    assert all(create_verifier(rule).name == rule for rule in RULES)
