"""The invariance, empty-draft, cache, cut and count laws on the toy target, with their negative controls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner.completion import Completion
from sooner.engine import Engine
from sooner.targets.toy import ToyTarget
from toy import TreeDrafter, V, toy_engine

PROMPTS = [[1, 2, 3], [4] * 9, [5, 6], [7, 8, 9, 10, 11, 1, 2], [3]]

samplings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 0.8, 1.5]),
        "top_k": st.sampled_from([0, 3, 8]),
        "top_p": st.sampled_from([1.0, 0.9, 0.5]),
        "min_p": st.sampled_from([0.0, 0.05]),
        "typical_p": st.sampled_from([1.0, 0.9]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 1.0]),
        "frequency_penalty": st.sampled_from([-2.0, 0.0, 2.0]),
        "logit_bias": st.sampled_from([{}, {3: 5.0}, {0: -100.0, 4: 2.5}]),
        "min_tokens": st.sampled_from([0, 5]),
        "max_tokens": st.integers(5, 40),
        "stop": st.sampled_from([(), ("stop",), ("ab", "top!"), ("é", "하")]),
        "include_stop": st.booleans(),
        "bad_words": st.sampled_from([(), ("ab",), ("c",)]),
        "ignore_eos": st.booleans(),
        "seed": st.integers(0, 3),
        "logprobs": st.sampled_from([0, 3]),
        "logprobs_mode": st.sampled_from(["raw", "processed"]),
    }
)


def visible(completion: Completion) -> tuple[Any, ...]:
    """Everything about an answer that drafting must not change."""
    c = completion
    return c.text, c.token_ids, c.logprobs, c.finish, c.usage.completion_tokens, c.seed


def plain(prompts: list[list[int]], options: dict[str, Any], **engine: Any) -> list[tuple[Any, ...]]:
    return [visible(toy_engine(**engine).generate(prompt, **options)) for prompt in prompts]


@given(options=samplings, seed=st.integers(0, 99), budget=st.integers(0, 12), flicker=st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_draft_budget_or_batch_changes_anything(
    options: dict[str, Any], seed: int, budget: int, flicker: bool
) -> None:
    want = plain(PROMPTS, options)
    truth = {tuple(p): list(w[1]) for p, w in zip(PROMPTS, want, strict=True)}
    engine = toy_engine(TreeDrafter(seed, truth), budget=budget, flicker=flicker, max_running=3)
    got = engine.generate_many(PROMPTS, **options)
    assert [visible(c) for c in got] == want
    check_counts(got)
    check_free(engine)


@given(options=samplings, pool=st.integers(60, 140), chunk=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_preemption_and_chunked_prompts_change_nothing(options: dict[str, Any], pool: int, chunk: int) -> None:
    want = plain(PROMPTS, options, context=60)
    truth = {tuple(p): list(w[1]) for p, w in zip(PROMPTS, want, strict=True)}
    engine = toy_engine(TreeDrafter(1, truth), context=60, pool_tokens=pool, chunk=chunk, busy_chunk=chunk)
    got = engine.generate_many(PROMPTS, **options)
    assert [visible(c) for c in got] == want
    check_free(engine)


def test_a_small_pool_does_preempt() -> None:
    engine = toy_engine(context=60, pool_tokens=80)
    engine.generate_many(PROMPTS, max_tokens=40, ignore_eos=True)
    assert engine.batch.preemptions > 0


def test_forced_preemption_at_any_step() -> None:
    want = plain(PROMPTS, {"max_tokens": 20, "temperature": 0.8, "seed": 1})
    for when in range(1, 15):
        engine = toy_engine(TreeDrafter(when), max_running=8)
        handles = [engine.submit(engine.request(p, max_tokens=20, temperature=0.8, seed=1)) for p in PROMPTS]
        for _ in range(when):
            engine.step()
        engine.batch.preempt()
        for handle in handles:
            list(engine.follow(handle))
        assert [visible(engine.completion(h)) for h in handles] == want


def test_a_row_dependent_target_is_caught() -> None:
    """Negative control: the invariance check fails where rows depend on their neighbours."""
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 0.8, "seed": 2, "logprobs": 0}
    want = plain(PROMPTS, options, row_dependent=True)
    got = toy_engine(TreeDrafter(0), row_dependent=True).generate_many(PROMPTS, **options)
    assert [visible(c) for c in got] != want


@given(options=samplings, n=st.integers(2, 5))
@settings(max_examples=40, deadline=None)
def test_choice_zero_is_the_single_answer_and_choices_have_their_own_seeds(options: dict[str, Any], n: int) -> None:
    alone = toy_engine().generate(PROMPTS[0], **options)
    engine = toy_engine(TreeDrafter(3))
    together = engine.generate(PROMPTS[0], n=n, **options)
    assert len(together.choices) == n
    assert visible(together)[:4] == visible(alone)[:4]
    again = toy_engine(max_running=1).generate(PROMPTS[0], n=n, **options)
    assert [c.token_ids for c in again.choices] == [c.token_ids for c in together.choices]
    check_free(engine)


def test_choices_differ_at_temperature() -> None:
    answer = toy_engine().generate(PROMPTS[0], n=8, temperature=1.0, seed=0, max_tokens=30, ignore_eos=True)
    assert len({c.token_ids for c in answer.choices}) == 8


def test_steps_add_up_to_the_completion() -> None:
    engine = toy_engine(TreeDrafter(5))
    handle = engine.submit(engine.request(PROMPTS[3], temperature=0.8, seed=3, max_tokens=40, stop=("stop",)))
    steps = list(engine.follow(handle))
    answer = engine.completion(handle)
    assert "".join(s.text for s in steps) == answer.text
    assert tuple(t for s in steps for t in s.tokens) == answer.token_ids
    assert [s.finish for s in steps][:-1] == [None] * (len(steps) - 1)
    assert steps[-1].finish == answer.finish


def test_without_a_seed_a_fresh_one_is_reported_and_reproduces() -> None:
    first = toy_engine().generate(PROMPTS[0], temperature=1.0, max_tokens=40)
    second = toy_engine().generate(PROMPTS[0], temperature=1.0, max_tokens=40)
    assert first.seed != second.seed
    again = toy_engine(TreeDrafter(1)).generate(PROMPTS[0], temperature=1.0, max_tokens=40, seed=first.seed)
    assert again.token_ids == first.token_ids


def test_the_last_position_of_the_context_is_usable() -> None:
    for length in (13, 14, 15, 16):
        for drafter in (None, TreeDrafter(0)):
            answer = toy_engine(drafter, context=16).generate([1] * length, ignore_eos=True)
            assert answer.usage.completion_tokens == 16 - length + 1
            assert answer.finish_reason == "length"


def check_counts(completions: list[Completion]) -> None:
    for c in completions:
        s = c.speculation
        assert s.accepted <= s.drafted
        assert sum(s.acceptance_histogram) == s.steps
        assert sum(k * n for k, n in enumerate(s.acceptance_histogram)) == s.accepted
        assert c.usage.completion_tokens == len(c.token_ids)
        assert sum(source != "target" for _, source in c.pieces) == s.accepted


def check_free(engine: Engine) -> None:
    assert isinstance(engine.target, ToyTarget)
    assert engine.target.used_tokens == 0
    assert not engine.busy


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_ratio_rules_run_through_the_engine(rule: str) -> None:
    engine = toy_engine(TreeDrafter(0))
    answer = engine.generate(PROMPTS[0], temperature=0.8, seed=1, max_tokens=40, ignore_eos=True, verify=rule)
    assert len(answer.token_ids) == 40
    assert answer.speculation.lossless
    assert max(answer.token_ids) < V
    check_free(engine)
