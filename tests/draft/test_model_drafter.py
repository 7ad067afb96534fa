"""A draft model on the toy target: laws, the self drafter by its road, vocabularies, contexts, pools, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import chained_steps, total_variation
from sooner import tree
from sooner.control.fixed import FixedController
from sooner.draft import create_drafter
from sooner.draft.cascade import CascadeDrafter
from sooner.draft.model import ModelDrafter
from sooner.engine import Engine
from sooner.errors import DraftError, ModelNotFound
from sooner.loading import open_model
from sooner.protocols import Coins, Context, Target
from sooner.targets.toy import ToyTarget
from sooner.text import TextCodec
from sooner.types import ROOT, Draft, Sampling, Step, Work
from sooner.verify import create_verifier
from test_engine_laws import PROMPTS, check_counts, plain, samplings, visible
from toy import PIECES, FlickerController, ToyCodec, V, toy_engine

PROMPT = (1, 2, 3)
GREEDY = Sampling(ignore_eos=True)


def model_drafter(
    target: Target, model: Target | None = None, codec: TextCodec | None = None, **options: Any
) -> ModelDrafter:
    """A drafter of ``model`` (default: the target itself) with its own ``codec`` (default: the target's)."""
    opened = model or target, codec or ToyCodec()
    given = {"open_model": lambda path: opened, "target": target, "codec": ToyCodec(), "thrifty": False}
    return ModelDrafter("toy", **{**given, **options})


def near_model(noise: float, **options: Any) -> ToyTarget:
    """The toy target of `toy_engine` with ``noise`` on its rows: a draft that is right now and then."""

    class Near(ToyTarget):
        def _make_row(self, context: tuple[int, ...]) -> Any:
            rng = np.random.default_rng([77, *context])
            return super()._make_row(context) + (rng.normal(size=V) * noise).astype(np.float32)

    return Near(V, **options)


def steps_of(engine: Engine, sampling: Sampling) -> list[Step]:
    return list(engine.stream(PROMPT, sampling))


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "warm": {"temperature": 0.8},
    "truncated": {"temperature": 1.3, "top_k": 9, "top_p": 0.9},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "min_tokens": {"temperature": 0.8, "min_tokens": 40, "ignore_eos": False},
    "rejection": {"temperature": 0.8, "verify": "rejection"},
    "block": {"temperature": 0.8, "verify": "block"},
}


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
def test_the_target_by_the_road_of_a_draft_model_is_always_accepted(options: dict[str, Any], k: int) -> None:
    sampling = Sampling(**{"seed": 5, "max_tokens": 40, "ignore_eos": True, **options})
    engine = toy_engine(budget=k)
    engine.drafter = model_drafter(engine.target, max=8, width=1)
    steps = steps_of(engine, sampling)
    assert max(len(step.draft) for step in steps) == k
    for step in steps:
        assert len(step.path) == len(step.draft)
        assert len(step.tokens) == len(step.draft) + 1
    if sampling.verify == "coupled":
        want = steps_of(toy_engine(), sampling)
        assert [t for step in steps for t in step.tokens] == [t for step in want for t in step.tokens]


@given(
    options=samplings,
    noise=st.sampled_from([0.0, 0.7, 3.0]),
    width=st.integers(1, 4),
    budget=st.integers(0, 12),
    flicker=st.booleans(),
    context=st.sampled_from([8, 24, 512]),
    pool=st.sampled_from([0, 40]),
    thrifty=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_no_draft_model_changes_anything(
    *,
    options: dict[str, Any],
    noise: float,
    width: int,
    budget: int,
    flicker: bool,
    context: int,
    pool: int,
    thrifty: bool,
) -> None:
    want = plain(PROMPTS, options)
    model = near_model(noise, context=context, pool_tokens=pool or None)
    engine = toy_engine(budget=budget, flicker=flicker, max_running=3)
    engine.drafter = CascadeDrafter([model_drafter(engine.target, model, width=width, max=6, thrifty=thrifty)])
    got = engine.generate_many(PROMPTS, **options)
    assert engine.warning is None
    assert [visible(c) for c in got] == want
    check_counts(got)
    assert model.used_tokens == 0
    assert model.sessions == []


def test_preemption_changes_nothing_and_a_target_with_a_fault_is_caught() -> None:
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0.8, "seed": 2, "logprobs": 0, "ignore_eos": True}
    for faulty in (False, True):
        want = plain(PROMPTS, options, row_dependent=faulty)
        engine = toy_engine(row_dependent=faulty, max_running=3)
        engine.drafter = model_drafter(engine.target, near_model(0.5))
        engine.controller = FlickerController(6, seed=1)
        handles = [engine.submit(engine.request(p, **options)) for p in PROMPTS]
        for when in range(200):
            if when % 7 == 3:
                engine.batch.preempt()
            engine.step()
        assert ([visible(engine.completion(h)) for h in handles] == want) is not faulty


def toy_law(target: ToyTarget, temperature: float) -> Any:
    def model(text: tuple[int, ...]) -> Any:
        session = target.open()
        (rows,) = target.score([Work(session, (0, *text))])
        session.close()
        row = rows.logits[0].astype(np.float64) / temperature
        weights = np.exp(row - row.max())
        return weights / weights.sum()

    return model


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize(("width", "budget"), [(1, 2), (2, 3), (3, 3)])
def test_sampled_drafts_are_lossless_by_enumeration(rule: Any, width: int, budget: int) -> None:
    """The whole road under the ratio rules, from the draft model's rows to the verdict; and a q that lies is caught."""
    target, model = ToyTarget(3, order=1, sharpness=1.0), ToyTarget(3, order=1, sharpness=1.0, seed=9)
    sampling = Sampling(temperature=0.7, verify=rule)

    def drafting(text: tuple[int, ...], coins: Coins, *, honest: bool = True) -> Draft:
        drafter = model_drafter(target, model, width=width, max=2)
        context = Context(id=0, tokens=(0, *text), prompt_length=1, budget=budget, sampling=sampling, coins=coins)
        (draft,) = drafter.propose([context])
        drafter.forget(0)
        return draft if honest else replace(draft, q={node: row**2 / (row**2).sum() for node, row in draft.q.items()})

    law = toy_law(target, 0.7)
    assert total_variation(chained_steps(create_verifier(rule), law, drafting, steps=1), law, 3) < 1e-9
    lying = chained_steps(create_verifier(rule), law, lambda *a: drafting(*a, honest=False), steps=1)
    assert total_variation(lying, law, 3) > 1e-3


def context_of(tokens: Sequence[int], budget: int, id: int = 0, **options: Any) -> Context:
    return Context(id=id, tokens=tokens, prompt_length=1, budget=budget, sampling=GREEDY, **options)


def test_children_are_the_smallest_e_over_q() -> None:
    target = ToyTarget(V)
    noise = np.random.default_rng(0).exponential(size=(9, V))
    warm = Sampling(temperature=0.8)
    context = replace(context_of([1, 2], 9), sampling=warm, noise=lambda position, ids: noise[position, list(ids)])
    (draft,) = model_drafter(target, max=3, width=4).propose([context])
    race = np.argsort(noise[1] / toy_law(ToyTarget(V), 0.8)((1, 2)))  # the toy's rows see two tokens
    assert [draft.tokens[node] for node in draft.children(ROOT)] == race[:4].tolist()
    assert tree.depth(draft) == 3
    assert len(draft) == 9
    (greedy,) = model_drafter(target, max=3, width=4).propose([context_of([1, 2], 9)])
    best = np.argsort(-toy_law(ToyTarget(V), 1.0)((1, 2)))
    assert [greedy.tokens[node] for node in greedy.children(ROOT)] == best[:4].tolist()
    assert greedy.confidence[0] == pytest.approx(toy_law(ToyTarget(V), 1.0)((1, 2)).max())


def test_siblings_take_what_the_chain_leaves_of_the_budget() -> None:
    drafter = model_drafter(ToyTarget(V), max=4, width=3)
    shapes = {n: drafter.propose([context_of([1, 2], n, id=n)])[0] for n in range(13)}
    assert [(len(draft), tree.depth(draft)) for draft in shapes.values()] == [
        (min(n, 12), min(n, 4)) for n in range(13)
    ]


@pytest.mark.parametrize("length", [13, 14, 15, 16, 17, 40, 200])
def test_a_text_longer_than_the_drafts_context_is_read_through_a_window(length: int) -> None:
    model = near_model(0.0, context=16)
    engine = toy_engine(budget=4)
    engine.drafter = model_drafter(engine.target, model)
    options: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True}
    prompts = [[1 + i % 9 for i in range(length)], [4, 5]]
    got = engine.generate_many(prompts, **options)
    assert [c.token_ids for c in got] == [c.token_ids for c in toy_engine().generate_many(prompts, **options)]
    assert got[0].speculation.acceptance_length > 3  # the window loses nothing here: the toy's rows see two tokens
    assert engine.warning is None


def test_where_the_drafts_cache_is_full_the_longest_text_goes_without() -> None:
    model = near_model(0.0, context=24, pool_tokens=40)
    drafter = model_drafter(ToyTarget(V), model)
    contexts = [context_of([1] * 12, 4, id=0), context_of([2] * 20, 4, id=1), context_of([3] * 9, 4, id=2)]
    assert [len(draft) for draft in drafter.propose(contexts)] == [4, 0, 4]
    assert [len(draft) for draft in drafter.propose(contexts)] == [4, 0, 4]
    for id in (0, 2, 1):
        drafter.forget(id)
    assert [len(draft) for draft in drafter.propose(contexts[1:2])] == [4]
    drafter.forget(1)
    assert model.used_tokens == 0


class Swapped(ToyCodec):
    """Two ids trade places."""

    def token_bytes(self, id: int) -> bytes:
        return PIECES[{3: 5, 5: 3}.get(id, id)]


def test_vocabularies_padded_swapped_and_demanded() -> None:
    said: list[str] = []
    target = ToyTarget(V)
    for size in (V - 2, V, V + 128):  # heads are padded, or lack ids that no text uses
        drafter = model_drafter(target, ToyTarget(size), vocabulary="same", say=said.append)
        assert [len(d) for d in drafter.propose([context_of([1, 2, V - 1], 4)])] == [4]
    assert "the target's vocabulary" in said[-1]
    with pytest.raises(DraftError, match=r"token 3 is b'c' in the target and b'e' in the draft"):
        model_drafter(target, ToyTarget(V), Swapped(), vocabulary="same")
    model_drafter(target, ToyTarget(V), Swapped(), say=said.append)
    assert "different from token 3 on" in said[-1]
    with pytest.raises(DraftError, match="vocabulary must be one of"):
        model_drafter(target, vocabulary="mine")


def test_short_form_and_refusals() -> None:
    target = ToyTarget(V)
    given: dict[str, Any] = {"open_model": lambda path: (target, ToyCodec()), "target": target, "codec": ToyCodec()}
    drafter = create_drafter("kind=model,path=somewhere,max=3,width=1,thrifty=no", **given)
    assert [len(d) for d in drafter.propose([context_of([1, 2], 9)])] == [3]
    with pytest.raises(DraftError, match="needs path"):
        create_drafter("model", **given)
    with pytest.raises(DraftError, match="width must be an integer of at least 1"):
        create_drafter("kind=model,path=x,width=0", **given)
    with pytest.raises(ModelNotFound, match="draft model: no model 'not-there'"):
        open_model("not-there")


def test_a_draft_model_that_fails_takes_no_answer_down() -> None:
    class Failing(ToyTarget):
        def score(self, works: Sequence[Work]) -> Any:
            raise RuntimeError("out of memory")

    engine = toy_engine()
    engine.drafter = model_drafter(engine.target, Failing(V))
    answer = engine.generate(list(PROMPT), max_tokens=10, ignore_eos=True)
    assert answer.token_ids == toy_engine().generate(list(PROMPT), max_tokens=10, ignore_eos=True).token_ids
    assert engine.warning is not None
    assert "out of memory" in engine.warning
    assert isinstance(engine.controller, FixedController)
