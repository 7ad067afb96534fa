"""Places, prompt tokens and the cache are shared evenly between callers, and no sharing changes a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner.batch import Batch, Handle
from sooner.engine import Engine
from sooner.protocols import Context
from sooner.targets.toy import ToySession
from sooner.types import ROOT, Draft, Rows, Step
from test_engine_laws import check_free, visible
from toy import TreeDrafter, V, toy_engine

LONG: dict[str, Any] = {"max_tokens": 40, "temperature": 0.8, "ignore_eos": True}


def submit(engine: Engine, caller: str, prompt: list[int], **options: Any) -> Handle:
    handle = engine.submit(engine.request(prompt, **{**LONG, **options}))
    handle.caller = caller
    return handle


def passes_until(engine: Engine, handle: Handle, *, first: bool = False) -> int:
    """Passes until ``handle`` has ended, or has its first token."""
    passes = 0
    while not (handle.steps if first else handle.finished):
        engine.step()
        passes += 1
    return passes


def crowded(caller: str, **options: Any) -> tuple[Engine, list[Handle], Handle]:
    """Fifty requests of one caller, some of them running, and then one of ``caller``'s."""
    engine = toy_engine(TreeDrafter(0), max_running=4, **options)
    many = [submit(engine, "greedy", [1 + i % 5, 2, 3], seed=i) for i in range(50)]
    for _ in range(5):
        engine.step()
    return engine, many, submit(engine, caller, [5, 5], seed=99, max_tokens=10)


def test_one_who_sends_fifty_does_not_keep_another_waiting() -> None:
    engine, many, single = crowded("modest")
    alone = toy_engine(TreeDrafter(0))
    want = passes_until(alone, submit(alone, "modest", [5, 5], seed=99, max_tokens=10))
    assert passes_until(engine, single) <= 10 + 1  # a token a pass and one to read the prompt, whatever else runs
    assert want <= 11
    assert sum(handle.finished for handle in many) < 10
    while engine.busy:
        engine.step()
    plain = toy_engine()
    for i, handle in enumerate(many):  # also those that had to cede their place
        assert visible(engine.completion(handle)) == visible(plain.generate([1 + i % 5, 2, 3], **LONG, seed=i))
    assert engine.batch.preemptions > 0
    check_free(engine)


def test_the_same_caller_waits_for_its_own_turn() -> None:
    """The negative control: it is the caller that makes the difference."""
    engine, many, single = crowded("greedy")
    assert passes_until(engine, single) > 100
    assert all(handle.finished for handle in many[:40])
    assert engine.batch.preemptions == 0


@pytest.mark.parametrize("callers", [2, 3])
def test_with_fewer_places_than_callers_each_has_its_turn(callers: int) -> None:
    engine = toy_engine(max_running=1)
    many = [submit(engine, "greedy", [1, 2], seed=i, max_tokens=5) for i in range(20)]
    others = [submit(engine, f"modest {i}", [1, 2], max_tokens=5) for i in range(1, callers)]
    engine.step()
    for handle in others:
        passes_until(engine, handle)
    assert sum(handle.finished for handle in many) <= 1
    assert engine.batch.preemptions == 0  # nobody has two places


def test_places_end_up_even_and_then_nobody_is_sent_away() -> None:
    engine = toy_engine(max_running=4)
    for i in range(10):
        submit(engine, "greedy", [1, 2, 3], seed=i, max_tokens=400)
    engine.step()
    for i in range(10):
        submit(engine, "other", [3, 2, 1], seed=i, max_tokens=400)
    for _ in range(20):
        engine.step()
    running = [slot.handle.caller for slot in engine.batch.running]
    assert sorted(running) == ["greedy"] * 2 + ["other"] * 2
    assert engine.batch.preemptions == 2


def test_a_short_prompt_is_not_read_after_anothers_long_ones() -> None:
    def until_first(caller: str) -> int:
        engine = toy_engine(max_running=8, chunk=64, busy_chunk=16, context=600)
        submit(engine, "greedy", [1, 2], max_tokens=400)
        engine.step()
        for i in range(4):
            submit(engine, "greedy", [1 + i, *[2] * 300])
        engine.step()
        return passes_until(engine, submit(engine, caller, [7] * 12), first=True)

    assert until_first("modest") <= 3
    assert until_first("greedy") > 60


def test_what_one_caller_does_not_need_of_a_pass_the_others_read() -> None:
    engine = toy_engine(max_running=8, chunk=64, context=600)
    submit(engine, "one", [1] * 10)
    submit(engine, "two", [2] * 200)
    submit(engine, "three", [3] * 200)
    engine.batch.admit()
    works = engine.batch.works({})
    assert [len(work.tokens) for _, work in works] == [10, 27, 27]
    assert [work.logits for _, work in works] == [True, False, False]


def test_a_prompt_is_read_in_as_many_passes_whatever_the_others_draft() -> None:
    """And in passes of the same size: drafting must not delay a first token."""

    def read(drafter: TreeDrafter | None) -> tuple[int, set[int], int]:
        engine = toy_engine(drafter, budget=12, max_running=4, chunk=64, busy_chunk=24, context=600)
        writing = [submit(engine, "a", [1 + i, 2, 3], max_tokens=400) for i in range(3)]
        for _ in range(4):
            engine.step()
        alone = max(step.pass_rows for step in writing[0].steps)
        newcomer = submit(engine, "b", [1, 2, 3, 4] * 30, max_tokens=4)
        before = len(writing[0].steps)
        passes = passes_until(engine, newcomer, first=True)
        return passes, {step.pass_rows for step in writing[0].steps[before : before + passes - 1]}, alone

    plain, drafted = read(None), read(TreeDrafter(0))
    assert drafted[0] == plain[0]
    assert max(drafted[1]) <= max(plain[1]) == 24 - 3  # the toy feeds one row a text, where two are set aside
    assert drafted[2] > plain[2]  # they did draft before


def test_a_full_cache_takes_from_who_has_most() -> None:
    engine = toy_engine(TreeDrafter(0), max_running=4, context=64, pool_tokens=120)
    many = [submit(engine, "greedy", [1, 2, 3], seed=i, max_tokens=60) for i in range(6)]
    engine.step()
    single = submit(engine, "modest", [4, 5], seed=7, max_tokens=50)
    assert passes_until(engine, single) <= 51
    while engine.busy:
        engine.step()
    plain = toy_engine(context=64)
    for i, handle in enumerate(many):
        assert visible(engine.completion(handle)) == visible(
            plain.generate([1, 2, 3], **{**LONG, "max_tokens": 60}, seed=i)
        )
    check_free(engine)


@given(
    asked=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 30), st.integers(1, 2), st.integers(0, 6)),
        min_size=1,
        max_size=12,
    ),
    places=st.integers(1, 4),
    pool=st.sampled_from([70, 130, 400]),
)
@settings(max_examples=30, deadline=None)
def test_whoever_asks_every_text_is_its_solo_run(
    asked: list[tuple[str, int, int, int]], places: int, pool: int
) -> None:
    engine = toy_engine(TreeDrafter(1), max_running=places, context=60, pool_tokens=pool)
    plain = toy_engine(context=60)
    handles = []
    for i, (caller, tokens, n, pause) in enumerate(asked):
        handles.append(submit(engine, caller, [1 + i % 4, 2], seed=i, max_tokens=tokens, n=n))
        for _ in range(pause):
            engine.step()
    passes = 0
    while engine.busy:
        engine.step()
        passes += 1
        assert passes < 3000
    for i, (handle, (_, tokens, n, _)) in enumerate(zip(handles, asked, strict=True)):
        want = plain.generate([1 + i % 4, 2], **{**LONG, "max_tokens": tokens}, seed=i, n=n)
        assert [c.token_ids for c in engine.completion(handle).choices] == [c.token_ids for c in want.choices]
    check_free(engine)


class Wordy:
    """Samples one token, and drafts a second behind it only where the first is token 0: long drafts begin with 0."""

    name = "wordy"

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        return [self._propose(context) for context in contexts]

    def observe(self, step: Step, rows: Rows) -> None: ...

    def forget(self, id: int) -> None: ...

    def _propose(self, context: Context) -> Draft:
        assert context.coins is not None
        q = np.array([0.5, 0.5, *[0.0] * (V - 2)])
        first = context.coins.draw(q)
        chain = (first,) if first else (first, 1)
        return Draft(chain, tuple(range(-1, len(chain) - 1)), (0.5,) * len(chain), ("wordy",) * len(chain), {ROOT: q})


@pytest.mark.parametrize("asked_before", [True, False])
def test_a_full_cache_does_not_bias_sampled_drafts(asked_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target for which all tokens are equally likely. Where room is asked for afterwards, the negative control, token
    1 is drawn half as often again as it should be."""
    if not asked_before:
        monkeypatch.setattr(Batch, "allowed", lambda self, contexts: contexts)
    engine = toy_engine(Wordy(), budget=2, context=16, pool_tokens=16, sharpness=0.0)
    other = engine.target.open()
    assert isinstance(other, ToySession)
    other.tokens.extend([9] * 12)  # beside it there is room for a prompt of two, its first token and one guess
    runs, ones, drafted = 2000, 0, 0
    for seed in range(runs):
        handle = submit(engine, "", [3, 4], temperature=1.0, seed=seed, max_tokens=4, verify="rejection")
        engine.step()
        (step,) = engine.step()
        engine.abort(handle)
        ones += step.tokens[0] == 1
        drafted += len(step.draft)
    fair = runs / V
    assert (drafted > 0) is not asked_before
    assert (abs(ones - fair) < 3.5 * math.sqrt(fair)) is asked_before
