"""Any interleaving of submit, cancel, preempt, read and drain: every answer is its solo run and everything is freed."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from serving import toy_engine
from test_server_lives import Slow

from sooner.errors import InvalidRequest
from sooner.server import Settings
from sooner.server.driver import Driver, Job
from sooner.server.failures import Refusal
from sooner.server.metrics import Metrics
from sooner.server.service import Ready
from sooner.targets.toy import ToyTarget
from sooner.types import Step
from test_engine_laws import check_free
from toy import V

PROMPTS = ("a", "abcabc", "hgfedcba", "g f")
SETTINGS = Settings(max_running=3, max_waiting=3)
CONTEXT = 60

_solo: dict[tuple[str, tuple[Any, ...]], list[tuple[int, ...]]] = {}


def solo(prompt: str, options: dict[str, Any]) -> list[tuple[int, ...]]:
    """The ids of each choice, alone and undrafted."""
    key = prompt, tuple(sorted(options.items()))
    if key not in _solo:
        engine = toy_engine(ToyTarget(V, context=CONTEXT), drafter=None)
        _solo[key] = [choice.token_ids for choice in engine.generate(prompt, **options).choices]
    return _solo[key]


class Requests(RuleBasedStateMachine):
    """One driver, its engine's cache too small for all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.engine = toy_engine(Slow(0.0, context=CONTEXT, pool_tokens=70), max_running=3)
        self.parts: Ready = self.run(self._start())
        self.driver: Driver = self.parts.driver
        self.jobs: list[tuple[Job, str, dict[str, Any], list[Step]]] = []

    async def _start(self) -> Ready:
        return Ready(self.engine, SETTINGS)

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    @rule(
        prompt=st.sampled_from(PROMPTS),
        seed=st.integers(0, 3),
        temperature=st.sampled_from((0.0, 0.9)),
        n=st.integers(1, 2),
        max_tokens=st.integers(1, 40),
        draft=st.sampled_from(("", "ngram", "recycle")),
        caller=st.sampled_from(("", "one", "two")),
    )
    def submit(self, prompt: str, draft: str, caller: str, **options: Any) -> None:
        request = self.engine.request(prompt, **options, ignore_eos=True)
        drafter = self.parts.switch.drafter((draft,)) if draft else None
        free = self.driver._choices + options["n"] <= 6
        try:
            job = self.run(self.driver.submit([request], time.perf_counter(), drafter, caller=caller))
        except Refusal:
            assert not free
        else:
            self.jobs.append((job, prompt, options | {"ignore_eos": True}, []))

    @rule()
    def refuse(self) -> None:
        before = self.driver._choices
        good, bad = self.engine.request("a", max_tokens=3), self.engine.request([1] * (CONTEXT + 1))
        with pytest.raises((InvalidRequest, Refusal)):
            self.run(self.driver.submit([good, bad], time.perf_counter()))
        assert self.driver._choices <= before

    # What is drawn may not depend on which jobs there are: whether one was refused is a matter of time.
    @rule(which=st.integers(0, 5))
    def cancel(self, which: int) -> None:
        if self.jobs:
            job, *_ = self.jobs[which % len(self.jobs)]
            self.driver.cancel(job)

    @rule()
    def preempt(self) -> None:
        self.driver._post(self.engine.batch.preempt)

    @rule(which=st.integers(0, 5))
    def read(self, which: int) -> None:
        if not self.jobs:
            return
        job, _, _, steps = self.jobs[which % len(self.jobs)]
        if not job.done or not job.pieces.empty():
            steps += [step for _, step in self.run(job.next()) or ()]

    @rule(which=st.integers(0, 5))
    def finish(self, which: int) -> None:
        if self.jobs:
            self.end(*self.jobs.pop(which % len(self.jobs)))

    def end(self, job: Job, prompt: str, options: dict[str, Any], steps: list[Step]) -> None:
        """Read the rest; what was not cancelled is whole and its solo run, what was is a beginning of it."""
        steps += self.run(self._rest(job))
        for choice, want in enumerate(solo(prompt, options)):
            got = tuple(token for step in steps if step.choice == choice for token in step.tokens)
            assert got == want[: len(got)]
            assert job.cancelled or got == want
        assert job.failure is None

    async def _rest(self, job: Job) -> list[Step]:
        if job.done and job.pieces.empty():
            return []
        return [step async for pieces in job for _, step in pieces]

    @invariant()
    def never_more_than_allowed(self) -> None:
        assert 0 <= self.driver._choices <= 6
        assert self.driver.running <= 3

    def teardown(self) -> None:
        for entry in self.jobs:
            self.end(*entry)
        self.run(self.parts.close())
        self.loop.close()
        check_free(self.engine)
        assert self.driver._choices == 0
        assert not self.driver._held
        assert not self.parts.switch._assigned
        assert isinstance(self.parts.metrics, Metrics)
        assert not self.parts.metrics._last


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
