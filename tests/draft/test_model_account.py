"""What a draft model costs and brings: it is used where it pays, and left alone where it does not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sooner import tree
from sooner.draft.account import Account, followed_path
from sooner.draft.credit import Credit
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, TARGET, Draft, Sampling, Step

PASS_MS = 10.0


def play(
    account: Account,
    *,
    level_ms: float,
    right: float,
    steps: int = 600,
    free: int = 0,
    others: float = 0.0,
    read_ms: float = 0.0,
) -> tuple[float, float]:
    """A text of ``steps`` steps on a machine made of numbers. The model is right at each level with chance ``right``;
    ``free`` tokens come from another drafter at every step, and with chance ``others`` it has the model's first token.
    Returns the mean depth asked for and the tokens per millisecond, both of the second half."""
    rng = np.random.default_rng(0)
    context = Context(id=1, tokens=[1, 2], prompt_length=1, budget=24, sampling=Sampling())
    depths, tokens, ms = [], 0, 0.0
    for step in range(steps):
        (depth,) = account.depths([context])
        draft = tree.chain([7] * depth, 0.5, "model") if depth else EMPTY_DRAFT
        hits = next((i for i in range(depth) if rng.random() >= right), depth)
        if depth:
            account.drafted([context], [draft], depth * level_ms, {1: read_ms} if step == 0 else {})
        known = min(hits, 1) if rng.random() < others else 0
        emitted = ["model"] * (hits - known) + ["other"] * max(free, known) + [TARGET]
        spent = PASS_MS + depth * level_ms
        ids = [7] * hits + [8] * (len(emitted) - hits)
        account.observe(
            Step(1, 0, step, draft, (), tuple(ids), tuple(emitted), "", draft_ms=depth * level_ms, score_ms=PASS_MS)
        )
        if step >= steps // 2:
            depths.append(depth)
            tokens, ms = tokens + len(emitted), ms + spent
    account.forget(1)
    return float(np.mean(depths)), tokens / ms


@pytest.mark.parametrize(
    ("level_ms", "right", "least", "most"),
    [(1.0, 0.8, 3.0, 8.0), (4.0, 0.7, 0.8, 3.0), (9.0, 0.5, 0.0, 0.1), (3.0, 0.05, 0.0, 0.1), (1.0, 1.0, 7.9, 8.0)],
)
def test_a_model_is_asked_as_deep_as_pays(level_ms: float, right: float, least: float, most: float) -> None:
    depth, pace = play(Account("model", 8), level_ms=level_ms, right=right)
    assert least <= depth <= most
    assert pace > 0.97 / PASS_MS


def test_what_others_know_too_is_not_its_credit() -> None:
    alone, _ = play(Account("model", 8), level_ms=4.0, right=0.6)
    beside, pace = play(Account("model", 8), level_ms=4.0, right=0.6, others=1.0)
    assert alone > 0.8
    assert beside < 0.4
    assert pace > 0.97 / PASS_MS
    copying, _ = play(Account("model", 8), level_ms=4.0, right=0.6, free=6)
    assert copying < 0.2


def test_reading_long_prompts_for_short_answers_does_not_pay() -> None:
    account = Account("model", 4)
    short = [play(account, level_ms=4.0, right=0.8, steps=12, read_ms=400.0)[0] for _ in range(60)]
    cheap = Account("model", 4)
    read = [play(cheap, level_ms=4.0, right=0.8, steps=12)[0] for _ in range(60)]
    assert np.mean(short[30:]) < 0.5 * np.mean(read[30:])


def test_a_model_that_becomes_good_is_found_again() -> None:
    account = Account("model", 8)
    depth, _ = play(account, level_ms=2.0, right=0.02)
    assert depth < 0.2
    depth, _ = play(account, level_ms=2.0, right=0.9, steps=6000)
    assert depth > 2.0


def test_credit_is_a_comparison_with_the_pace() -> None:
    credit = Credit()
    for _ in range(50):
        credit.passed(2, 10.0)
        credit.learn(1, 4.0)
    assert credit.pays
    assert credit.ask()
    for _ in range(200):
        credit.learn(0, 4.0)
    assert not credit.pays
    asked = [credit.ask() for _ in range(31)]
    assert not any(asked)
    assert credit.ask()


def test_sampled_and_greedy_texts_are_judged_apart() -> None:
    account = Account("model", 8)
    play(account, level_ms=9.0, right=0.0)
    warm = Context(id=2, tokens=[1], prompt_length=1, budget=9, sampling=Sampling(temperature=1.0))
    assert account.depths([warm]) == [1]
    assert account.depths([warm, Context(id=3, tokens=[1], prompt_length=1, budget=9, sampling=Sampling())])[1] == 0


def test_the_followed_path_is_that_of_first_children() -> None:
    def draft(tokens: Sequence[int], parents: Sequence[int]) -> Draft:
        return Draft(tuple(tokens), tuple(parents), (0.5,) * len(tokens), ("model",) * len(tokens))

    assert followed_path(EMPTY_DRAFT) == []
    assert followed_path(draft([4, 5, 6, 7, 8], [-1, -1, 0, 0, 2])) == [4, 6, 8]
