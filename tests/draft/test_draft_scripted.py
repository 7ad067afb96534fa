"""Drafters whose acceptance is known in advance: oracle, self and random, run through the engine on the toy target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import chained_steps, random_model, total_variation
from sooner import tree
from sooner.control.fixed import FixedController
from sooner.draft.oracle import OracleDrafter
from sooner.draft.random import RandomDrafter
from sooner.draft.self import SelfDrafter
from sooner.engine import Engine
from sooner.protocols import Coins, Context, Drafter
from sooner.targets.toy import ToyTarget
from sooner.types import EMPTY_DRAFT, Draft, Sampling, Step, Work
from sooner.verify import create_verifier
from toy import V, toy_engine

PROMPT = (1, 2, 3)
GREEDY = Sampling(max_tokens=40, ignore_eos=True)
WARM = Sampling(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True)
SETTINGS = {
    "greedy": GREEDY,
    "warm": WARM,
    "top-k, top-p": Sampling(temperature=1.3, top_k=9, top_p=0.9, seed=5, max_tokens=40, ignore_eos=True),
    "penalties": Sampling(
        temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.5, seed=5, max_tokens=40, ignore_eos=True
    ),
    "greedy penalties": Sampling(presence_penalty=1.0, max_tokens=40, ignore_eos=True),
    "min_tokens": Sampling(temperature=0.8, min_tokens=40, seed=5, max_tokens=40),
}


def steps_of(engine: Engine, sampling: Sampling) -> list[Step]:
    return list(engine.stream(PROMPT, sampling))


def tokens_of(steps: Sequence[Step]) -> tuple[int, ...]:
    return tuple(token for step in steps for token in step.tokens)


class Scripted(FixedController):
    """Gives the budgets of a script, over and over."""

    def __init__(self, script: Sequence[int]) -> None:
        super().__init__(max(script))
        self._script = script
        self._at = 0

    def budgets(self, contexts: Sequence[Context]) -> list[int]:
        self._at += 1
        return [self._script[(self._at - 1) % len(self._script)]] * len(contexts)


def run(make: Callable[[Engine], Drafter], sampling: Sampling, script: Sequence[int]) -> list[Step]:
    engine = toy_engine()
    engine.drafter = make(engine)
    engine.controller = Scripted(script)
    return steps_of(engine, sampling)


def self_drafter(engine: Engine) -> SelfDrafter:
    return SelfDrafter(engine.target, max=8, eos_ids=tuple(engine.codec.eos_ids))


@pytest.mark.parametrize("script", [*((k,) for k in range(1, 9)), (3, 0, 0, 3), (1, 0, 8)], ids=str)
@pytest.mark.parametrize("sampling", SETTINGS.values(), ids=SETTINGS)
def test_the_target_accepts_all_of_its_own_draft(sampling: Sampling, script: Sequence[int]) -> None:
    steps = run(self_drafter, sampling, script)
    assert tokens_of(steps) == tokens_of(steps_of(toy_engine(), sampling))
    assert max(len(step.draft) for step in steps) == max(script)
    for step in steps:
        assert len(step.path) == len(step.draft)
        assert len(step.tokens) == len(step.draft) + 1


@pytest.mark.parametrize("rule", ["rejection", "block", "typical", "lenience"])
def test_a_sampled_self_draft_is_accepted_too(rule: Any) -> None:
    sampling = Sampling(temperature=0.8, top_p=0.95, seed=9, max_tokens=40, ignore_eos=True, verify=rule)
    steps = run(self_drafter, sampling, (4,))
    assert any(step.draft.q for step in steps)
    if rule != "typical":  # which refuses what is improbable, whoever sampled it
        assert all(len(step.path) == len(step.draft) for step in steps)


def test_a_draft_without_the_targets_noise_is_not_always_accepted() -> None:
    """A control: the same drafter, kept from the noise, drafts the arg-max, and some of it is rejected."""

    class Deaf(SelfDrafter):
        def propose(self, contexts: Sequence[Context]) -> list[Draft]:
            return super().propose([_without_noise(context) for context in contexts])

    steps = run(lambda engine: Deaf(engine.target, max=4), WARM, (4,))
    assert tokens_of(steps) == tokens_of(steps_of(toy_engine(), WARM))
    assert any(len(step.path) < len(step.draft) for step in steps)


def _without_noise(context: Context) -> Context:
    return Context(
        id=context.id,
        tokens=context.tokens,
        prompt_length=context.prompt_length,
        budget=context.budget,
        sampling=context.sampling,
    )


def direct(target: ToyTarget, tokens: Sequence[int], *, budget: int = 4, id: int = 0) -> Context:
    return Context(id=id, tokens=tokens, prompt_length=1, budget=budget, sampling=GREEDY)


def test_self_sessions_are_closed_and_long_prompts_are_fed_in_parts() -> None:
    target = ToyTarget(V, context=2000)
    fed: list[int] = []
    score = target.score

    def watched(works: Sequence[Work]) -> Any:
        fed.append(max(len(work.tokens) for work in works))
        return score(works)

    target.score = watched  # type: ignore[method-assign]  # a spy
    drafter = SelfDrafter(target, max=3)
    text = [i % V for i in range(1000)]
    drafts = drafter.propose([direct(target, text), direct(target, text[:5], id=1), direct(target, text, budget=0)])
    assert [len(draft) for draft in drafts] == [3, 3, 0]
    assert max(fed) <= 256
    assert target.used_tokens == 1002 + 7
    for id in (0, 1, 0):
        drafter.forget(id)
    assert target.used_tokens == 0
    assert target.sessions == []


def test_self_stops_at_the_end_of_the_context() -> None:
    target = ToyTarget(V, context=16)
    drafter = SelfDrafter(target, max=8)
    lengths = [len(drafter.propose([direct(target, [1] * n, budget=8)])[0]) for n in (8, 14, 16)]
    assert lengths == [8, 3, 1]


def test_self_gives_way_when_the_cache_is_full() -> None:
    target = ToyTarget(V, context=16, pool_tokens=16)
    theirs = target.open()
    target.score([Work(theirs, (1,) * 10)])
    drafter = SelfDrafter(target, max=4)
    # 10 + 4 slots are taken; two drafted tokens can be fed, and the third needs no feeding.
    assert drafter.propose([direct(target, [1, 2, 3, 4])]) == [tree.chain(greedy([1, 2, 3, 4], 3), 1.0, "self")]
    assert target.used_tokens == 10
    assert drafter.propose([direct(target, [1] * 12)]) == [EMPTY_DRAFT]


def greedy(text: list[int], count: int) -> list[int]:
    """The toy target's own continuation, fed anew for each token."""
    for _ in range(count):
        target = ToyTarget(V, context=16)
        (rows,) = target.score([Work(target.open(), tuple(text))])
        text = [*text, int(rows.logits[0].argmax())]
    return text[-count:]


def test_self_draft_with_its_coins_is_lossless_by_enumeration() -> None:
    """The whole road, from the drafter's own sampling to the verdict, at temperature > 0 under the ratio rules."""
    target = ToyTarget(3, order=1, sharpness=1.0)
    sampling = Sampling(temperature=0.7, verify="block")

    def model(text: tuple[int, ...]) -> Any:
        session = target.open()
        (rows,) = target.score([Work(session, (0, *text))])
        session.close()
        row = rows.logits[0].astype(np.float64) / 0.7
        weights = np.exp(row - row.max())
        return weights / weights.sum()

    def drafting(text: tuple[int, ...], coins: Coins) -> Draft:
        drafter = SelfDrafter(target, max=2)
        context = Context(id=0, tokens=(0, *text), prompt_length=1, budget=2, sampling=sampling, coins=coins)
        (draft,) = drafter.propose([context])
        drafter.forget(0)
        return draft

    for rule in ("rejection", "block"):
        law = chained_steps(create_verifier(rule), model, drafting, steps=1)
        assert total_variation(law, model, 3) < 1e-9
    # A control: against another model's rows the same draft is not accepted as if it were honest about them.
    other = random_model(3, 3)
    law = chained_steps(create_verifier("block"), other, drafting, steps=1)
    assert total_variation(law, model, 3) > 1e-2


@pytest.mark.parametrize("error_at", [None, 0, 1, 3])
def test_the_oracle_has_any_acceptance_length(error_at: int | None) -> None:
    truth = tokens_of(steps_of(toy_engine(), GREEDY))
    steps = run(lambda engine: OracleDrafter({PROMPT: truth}, max=5, error_at=error_at), GREEDY, (5,))
    assert tokens_of(steps) == truth
    for step in steps[1:-1]:
        wanted = len(step.draft) if error_at is None else min(error_at, len(step.draft))
        assert step.accepted == wanted
    assert max(len(step.draft) for step in steps) == 5


def test_the_oracle_errs_at_a_rate_that_does_not_depend_on_steps() -> None:
    truth = list(range(1000))

    def drafted(drafter: OracleDrafter, start: int) -> Sequence[int]:
        (draft,) = drafter.propose([direct(ToyTarget(V), [7, *truth[:start]], budget=1000)])
        return draft.tokens

    whole = drafted(OracleDrafter(truth, max=1000, rate=0.3, seed=1), 0)
    errors = sum(a != b for a, b in zip(whole, truth, strict=True))
    assert 230 < errors < 370
    assert drafted(OracleDrafter(truth, max=1000, rate=0.3, seed=1), 500) == whole[500:]
    assert drafted(OracleDrafter(truth, max=1000, rate=0.3, seed=2), 0) != whole


def test_the_oracle_is_wrong_where_it_must_be() -> None:
    drafter = partial(OracleDrafter, [0, 4, 4], error_at=0)
    for wrong, tokens in ((None, (1, 4, 4)), (9, (9, 4, 4)), (0, (1, 4, 4))):
        assert drafter(wrong=wrong).propose([direct(ToyTarget(V), [7])])[0].tokens == tokens
    assert OracleDrafter({(8,): [1]}).propose([direct(ToyTarget(V), [7])]) == [EMPTY_DRAFT]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.integers(0, 12), bushy=st.booleans())
def test_random_drafts_are_reproducible_and_well_formed(seed: int, budget: int, bushy: bool) -> None:
    drafter = RandomDrafter(vocab_size=V, max=10, tree=bushy, seed=seed)
    (draft,) = drafter.propose([direct(ToyTarget(V), [1, 2], budget=budget)])
    assert draft == drafter.propose([direct(ToyTarget(V), [1, 2], budget=budget)])[0]
    assert len(draft) <= min(budget, 10)
    assert tree.sanitise(draft, V, 10) == draft
    assert len(draft) == min(budget, 10) or bushy


@pytest.mark.parametrize("verify", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("options", [{}, {"tree": True}, {"malicious": True}], ids=["chain", "tree", "malicious"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_hostile_drafter_changes_nothing(options: dict[str, bool], verify: Any, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=3, max_tokens=40, ignore_eos=True, verify=verify)
    steps = run(lambda engine: RandomDrafter(vocab_size=V, **options), sampling, (6,))
    assert sum(len(step.tokens) for step in steps) == 40
    assert any(len(step.draft) for step in steps)
    if verify == "coupled" or temperature == 0.0:
        assert tokens_of(steps) == tokens_of(steps_of(toy_engine(), sampling))


def test_malicious_drafts_are_malicious() -> None:
    """A control: most of what it returns is not well-formed before it is cleaned."""
    drafter = RandomDrafter(vocab_size=V, malicious=True)
    raw = [drafter.propose([direct(ToyTarget(V), [1] * n)])[0] for n in range(1, 40)]
    assert sum(not isinstance(draft, Draft) for draft in raw) > 3
    assert sum(isinstance(draft, Draft) and len(draft) > 4 for draft in raw) > 3
    assert all(len(tree.sanitise(draft, V, 4, 4)) <= 4 for draft in raw)
