"""What users' parts and callers do to an engine: hostile drafters, failing targets, aborts, threads, event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from sooner.errors import InvalidRequest, TargetError
from sooner.protocols import Context
from sooner.types import Draft, Rows, Step, Work
from test_engine_laws import PROMPTS, check_free, visible
from toy import TreeDrafter, V, toy_engine

OPTIONS: dict[str, Any] = {"max_tokens": 25, "temperature": 0.8, "seed": 4, "ignore_eos": True, "logprobs": 1}


class Malicious:
    """Returns whatever it likes."""

    name = "malicious"

    def __init__(self, what: Any) -> None:
        self.what = what

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        if isinstance(self.what, Exception):
            raise self.what
        return [cast(Draft, self.what)] * len(contexts)

    def observe(self, step: Step, rows: Rows) -> None: ...

    def forget(self, id: int) -> None: ...


GARBAGE = [
    None,
    "draft",
    Draft((V, -1, 10**12), (-1, 0, 1), (0.5,) * 3, ("m",) * 3),
    Draft((1, 1, 1), (-1, -1, -1), (0.5,) * 3, ("m",) * 3),
    Draft((1, 2), (1, 0), (0.5,) * 2, ("m",) * 2),
    Draft((1, 2), (-1, 5), (0.5,) * 2, ("m",) * 2),
    Draft((1, 2), (-1,), (), ("m",)),
    Draft(tuple(range(V)) * 200, tuple(range(-1, V * 200 - 1)), (float("nan"),) * V * 200, ("m",) * V * 200),
    Draft(cast(Any, [1, 2.5, "x"]), cast(Any, [-1, 0, 1]), cast(Any, [2, -3, None]), cast(Any, ["target"] * 3)),
]


@pytest.mark.parametrize("what", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_changes_nothing(what: Any) -> None:
    want = visible(toy_engine().generate(PROMPTS[0], **OPTIONS))
    engine = toy_engine(Malicious(what), context=64)
    answer = engine.generate(PROMPTS[0], **OPTIONS)
    assert visible(answer) == want
    assert answer.speculation.accepted <= answer.speculation.drafted
    check_free(engine)


def test_a_drafter_that_raises_is_switched_off_and_said(caplog: pytest.LogCaptureFixture) -> None:
    want = visible(toy_engine().generate(PROMPTS[0], **OPTIONS))
    engine = toy_engine(Malicious(RuntimeError("boom")))
    answer = engine.generate(PROMPTS[0], **OPTIONS)
    assert visible(answer) == want
    assert answer.speculation.warning == "drafter malicious failed and is off: RuntimeError: boom"
    assert "boom" in caplog.text


def test_a_drafter_that_never_drafts_is_said() -> None:
    engine = toy_engine(Malicious(Draft()))
    assert engine.generate(PROMPTS[0], **OPTIONS).speculation.warning is None  # too short to tell
    answer = engine.generate(PROMPTS[0], **{**OPTIONS, "max_tokens": 60})
    assert answer.speculation.warning == "malicious drafted nothing for this text"


class FirstSilent(Malicious):
    """Drafts for every sequence but the first it meets."""

    def __init__(self) -> None:
        super().__init__(Draft((3,), (-1,), (0.5,), ("m",)))
        self.first: int | None = None

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        if self.first is None:
            self.first = contexts[0].id
        return [Draft() if context.id == self.first else self.what for context in contexts]


def test_silence_is_said_of_the_choice_it_concerns() -> None:
    silent, drafted = toy_engine(FirstSilent()).generate(PROMPTS[0], **{**OPTIONS, "max_tokens": 60, "n": 2}).choices
    assert silent.speculation.warning == "malicious drafted nothing for this text"
    assert (drafted.speculation.drafted > 0, drafted.speculation.warning) == (True, None)


@pytest.mark.parametrize(
    ("fault", "said"), [(RuntimeError("device\nlost"), "pass: device lost$"), (MemoryError(), "pass: MemoryError$")]
)
def test_a_failing_pass_ends_its_requests_and_serves_the_next(fault: Exception, said: str) -> None:
    engine = toy_engine()
    good = engine.target.score
    fail = [False]

    def score(works: Sequence[Work]) -> list[Rows]:
        if fail[0]:
            raise fault
        return good(works)

    engine.target.score = score  # type: ignore[method-assign]  # the simplest target that fails on demand
    want = visible(engine.generate(PROMPTS[0], **OPTIONS))
    fail[0] = True
    with pytest.raises(TargetError, match=said):
        engine.generate_many(PROMPTS, **OPTIONS)
    check_free(engine)
    fail[0] = False
    assert visible(engine.generate(PROMPTS[0], **OPTIONS)) == want


@pytest.mark.parametrize("drafting", [False, True])
def test_what_cannot_be_scored_ends_alone(drafting: bool, caplog: pytest.LogCaptureFixture) -> None:
    """One text is too much for the device from its tenth token on; its neighbours' texts are those they have alone."""
    solo = [visible(toy_engine().generate(prompt, **OPTIONS)) for prompt in PROMPTS]
    engine = toy_engine(TreeDrafter(3, vocab_size=V) if drafting else None, max_running=len(PROMPTS))
    good, victim = engine.target.score, list(PROMPTS[1])

    def score(works: Sequence[Work]) -> list[Rows]:
        held = [[*work.session.tokens, *work.tokens] for work in works]
        if any(tokens[: len(victim)] == victim and len(tokens) >= len(victim) + 10 for tokens in held):
            raise MemoryError("the device is full")
        return good(works)

    engine.target.score = score  # type: ignore[method-assign]
    handles = [engine.submit(engine.request(prompt, **OPTIONS)) for prompt in PROMPTS]
    while engine.busy:
        engine.step()
    for handle, want, prompt in zip(handles, solo, PROMPTS, strict=True):
        if list(prompt) == victim:
            assert "the device is full" in str(handle.error)
            assert 0 < len(handle.steps) < OPTIONS["max_tokens"], "it had begun"
        else:
            assert handle.error is None
            assert visible(engine.completion(handle)) == want
    assert f"a pass over {len(PROMPTS)} texts failed (the device is full)" in caplog.text
    check_free(engine)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_choice_that_cannot_be_scored_ends_the_others_and_nothing_comes_after_an_end(failing: int) -> None:
    engine = toy_engine(max_running=2)
    good, passes = engine.target.score, 0

    def score(works: Sequence[Work]) -> list[Rows]:
        nonlocal passes
        passes += len(works) == 2
        if passes > 5 and (len(works) == 2 or works[0].session is engine.batch.running[failing].session):
            raise MemoryError("the device is full")
        return good(works)

    engine.target.score = score  # type: ignore[method-assign]
    handle = engine.submit(engine.request(PROMPTS[0], n=2, **OPTIONS))
    while engine.busy:
        engine.step()
    for choice in (0, 1):
        steps = [step for step in handle.steps if step.choice == choice]
        assert [step.finish is not None for step in steps] == [False] * (len(steps) - 1) + [True]
        assert [step.index for step in steps] == sorted(step.index for step in steps)
        assert len(steps) > 3
    check_free(engine)


def test_sessions_that_a_failing_pass_has_changed_are_not_scored_again() -> None:
    engine = toy_engine(max_running=2)
    good = engine.target.score

    def score(works: Sequence[Work]) -> list[Rows]:
        rows = good(works)
        if len(works) > 1:
            raise RuntimeError("lost behind the pass")
        return rows

    engine.target.score = score  # type: ignore[method-assign]
    handles = [engine.submit(engine.request(prompt, **OPTIONS)) for prompt in PROMPTS[:2]]
    while engine.busy:
        engine.step()
    assert all("lost behind the pass" in str(handle.error) for handle in handles)
    check_free(engine)


def test_abort_at_any_step_frees_at_once_and_leaves_neighbours_alone() -> None:
    want = visible(toy_engine().generate(PROMPTS[1], **OPTIONS))
    for when in range(8):
        engine = toy_engine(TreeDrafter(when))
        doomed = engine.submit(engine.request(PROMPTS[0], n=2, **OPTIONS))
        kept = engine.submit(engine.request(PROMPTS[1], **OPTIONS))
        for _ in range(when):
            engine.step()
        engine.abort(doomed)
        assert len(engine.batch.running) <= 1
        list(engine.follow(kept))
        assert visible(engine.completion(kept)) == want
        assert engine.completion(doomed).finish_reason == "abort"
        check_free(engine)


def test_leaving_a_stream_aborts() -> None:
    engine = toy_engine(TreeDrafter(0))
    stream = engine.stream(PROMPTS[0], **OPTIONS)
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # it is a generator, typed as the iterator callers need
    check_free(engine)


def test_an_unfinished_request_has_no_completion() -> None:
    engine = toy_engine()
    handle = engine.submit(engine.request(PROMPTS[0], **OPTIONS))
    with pytest.raises(InvalidRequest, match="not finished"):
        engine.completion(handle)


def test_threads_share_one_engine() -> None:
    want = [visible(toy_engine().generate(p, **OPTIONS)) for p in PROMPTS]
    engine = toy_engine(TreeDrafter(2), max_running=3)
    got: dict[int, Any] = {}

    def ask(i: int) -> None:
        got[i] = visible(engine.generate(PROMPTS[i % len(PROMPTS)], **OPTIONS))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [got[i] for i in range(10)] == [want[i % len(PROMPTS)] for i in range(10)]
    check_free(engine)


def test_async_twins_and_cancellation() -> None:
    want = [visible(toy_engine().generate(p, **OPTIONS)) for p in PROMPTS]
    engine = toy_engine(TreeDrafter(2))

    async def main() -> None:
        answers = await asyncio.gather(*(engine.agenerate(p, **OPTIONS) for p in PROMPTS))
        assert [visible(a) for a in answers] == want
        assert [visible(a) for a in await engine.agenerate_many(PROMPTS, **OPTIONS)] == want
        text = "".join([step.text async for step in engine.astream(PROMPTS[0], **OPTIONS)])
        assert text == want[0][0]
        task = asyncio.create_task(engine.agenerate([1], max_tokens=400, ignore_eos=True))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    check_free(engine)


def test_the_picture_in_a_notebook_marks_drafted_tokens() -> None:
    truth = {tuple(PROMPTS[0]): toy_engine().generate(PROMPTS[0], **OPTIONS).token_ids}
    answer = toy_engine(TreeDrafter(0, truth, hit=1.0)).generate(PROMPTS[0], **OPTIONS)
    page = answer._repr_html_()
    assert page.count("underline") == answer.speculation.accepted > 0
    assert "<script" not in page


def test_non_finite_rows_never_become_tokens() -> None:
    engine = toy_engine(sharpness=float("nan"))
    with np.errstate(all="ignore"), pytest.raises(TargetError, match="not finite"):
        engine.generate(PROMPTS[0], **OPTIONS)
    check_free(engine)
