"""The lives of requests: streams left anywhere, refusals, drafters that cling or fail, a cache shared with one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from sooner.draft.self import SelfDrafter
from sooner.engine import Engine
from sooner.errors import ContextOverflow, InvalidRequest
from sooner.targets.toy import ToyTarget
from sooner.types import Rows, Sampling, Step, Work
from test_engine_laws import PROMPTS, check_free, visible
from toy import ToyCodec, TreeDrafter, V, toy_engine

OPTIONS: dict[str, Any] = {"max_tokens": 25, "temperature": 0.8, "seed": 4, "ignore_eos": True}


def test_a_stream_collected_in_a_pass_hurts_nobody() -> None:
    """The collector may run a left stream's abort inside any call of the pass; here it does so as the pass begins."""
    engine = Engine(ToyTarget(V), ToyCodec())
    want = engine.generate([1, 1, 3], **OPTIONS).token_ids
    score = engine.target.score
    left: list[Any] = []

    def collecting(works: Sequence[Work]) -> list[Rows]:
        if left:
            left.pop().close()
        return score(works)

    for _ in range(10):
        stream = engine.stream([2, 2, 3], **OPTIONS)
        next(stream)
        left.append(stream)
        del stream
        engine.target.score = collecting  # type: ignore[method-assign]  # the collector's moment, chosen
        assert engine.generate([1, 1, 3], **OPTIONS).token_ids == want
    check_free(engine)


@pytest.mark.parametrize("pool", range(60, 124))
def test_a_drafter_in_the_same_cache_never_takes_the_answer_down(pool: int) -> None:
    want = visible(toy_engine(context=60).generate([1] * 20, **{**OPTIONS, "max_tokens": 40}))
    engine = toy_engine(context=60, pool_tokens=pool)
    engine.drafter = SelfDrafter(engine.target, max=1)
    assert visible(engine.generate([1] * 20, **{**OPTIONS, "max_tokens": 40})) == want
    check_free(engine)


def test_a_refused_request_leaves_no_other_behind() -> None:
    engine = toy_engine(context=60)
    with pytest.raises(ContextOverflow):
        engine.generate_many([[1, 2], [1] * 61], max_tokens=20)
    assert not engine.busy


def test_a_stream_never_read_leaves_nothing() -> None:
    engine = toy_engine()
    stream = engine.stream([1, 2, 3], **OPTIONS)
    del stream
    assert not engine.busy


def test_a_drafter_that_cannot_forget_changes_nothing() -> None:
    class Clings(TreeDrafter):
        def forget(self, id: int) -> None:
            raise RuntimeError("no")

    want = visible(toy_engine().generate(PROMPTS[1], **OPTIONS))
    engine = toy_engine(Clings(0))
    engine.submit(engine.request(PROMPTS[0], **{**OPTIONS, "max_tokens": 5}))
    handle = engine.submit(engine.request(PROMPTS[1], **OPTIONS))
    list(engine.follow(handle))
    assert visible(engine.completion(handle)) == want


def test_a_dropped_drafter_gives_its_cache_back() -> None:
    class Fails(SelfDrafter):
        def observe(self, step: Step, rows: Rows) -> None:
            if step.index == 3:
                raise RuntimeError("no")

    engine = toy_engine()
    engine.drafter = Fails(engine.target, max=3)
    engine.generate([1, 2, 3], **OPTIONS)
    check_free(engine)


def test_tiny_temperatures_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        Sampling(temperature=1e-308)


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        toy_engine(max_running=0)


def test_a_thread_that_submits_does_not_wait_for_many_passes() -> None:
    engine = toy_engine(max_running=2)
    passes = 0
    score = engine.target.score

    def slow(works: Sequence[Work]) -> list[Rows]:
        nonlocal passes
        passes += 1
        time.sleep(0.002)
        return score(works)

    engine.target.score = slow  # type: ignore[method-assign]  # a pass that takes its time
    driver = threading.Thread(target=lambda: engine.generate([1, 2], max_tokens=200, ignore_eos=True))
    driver.start()
    waited = []
    for _ in range(15):
        time.sleep(0.005)
        before = passes
        engine.abort(engine.submit(engine.request([3, 4], max_tokens=3)))
        waited.append(passes - before)
    driver.join(timeout=60)
    assert sorted(waited)[len(waited) // 2] <= 3  # submitting and aborting take a turn each


def test_sampled_rows_are_not_kept_with_the_record() -> None:
    engine = toy_engine()
    engine.drafter = SelfDrafter(engine.target, max=3)
    handle = engine.submit(engine.request([1, 2], **{**OPTIONS, "verify": "rejection"}))
    list(engine.follow(handle))
    rows = [row for step in handle.steps for row in step.draft.q.values()]
    assert rows
    assert not any(len(row) for row in rows)


def test_banned_tokens_log_probability_is_json() -> None:
    answer = toy_engine().generate(
        [1, 2], logprobs=5, logprobs_mode="processed", temperature=1.0, top_k=2, max_tokens=5
    )
    text = json.dumps(answer.to_dict(), allow_nan=False)
    assert "null" in text
