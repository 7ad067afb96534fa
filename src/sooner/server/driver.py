"""The engine in a thread of its own, and the event loop's view of it: submit, follow, cancel, drain.

Knows an engine's steps and an event loop. Does not know HTTP, text or what a request means.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sooner.engine import Engine, Handle
from sooner.errors import InvalidRequest, SoonerError, TargetError
from sooner.protocols import Drafter
from sooner.server.failures import Refusal, busy, drained, too_slow
from sooner.server.settings import Settings
from sooner.server.switch import DraftSwitch
from sooner.types import Finish, Request, Step

__all__ = ["Driver", "Job", "Observer", "Pieces"]

log = logging.getLogger("sooner.server")

Pieces = list[tuple[int, Step]]
"""What one pass brought for one job: which of its requests, and the step."""

Failure = SoonerError | Refusal


@dataclass(eq=False)
class Job:
    """Requests that are answered together. ``handles`` in their order; ``failure`` is why there is no whole answer.

    ``started`` is on the clock of `time.perf_counter`; ``timeout_s`` later it must be over. ``caller``: who shares the
    machine with the others; ``name``: how
    the caller knows it. Iterating gives what each pass brought, until the end.
    """

    requests: Sequence[Request]
    started: float
    timeout_s: float
    caller: str = ""
    drafter: Drafter | None = None
    name: str = ""
    handles: list[Handle] = field(default_factory=list, repr=False)
    failure: Failure | None = None
    cancelled: bool = False
    done: bool = False
    seen: list[int] = field(default_factory=list, repr=False)
    pieces: asyncio.Queue[Pieces | None] = field(default_factory=asyncio.Queue, repr=False)

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        return time.perf_counter() > self.started + self.timeout_s

    @property
    def choices(self) -> int:
        """Texts that it asks for."""
        return sum(request.sampling.n for request in self.requests)

    async def next(self, wait_s: float = math.inf) -> Pieces | None:
        """What the next pass brings; None at the end. Raises `TimeoutError` after ``wait_s``."""
        if not self.pieces.empty():
            return self.pieces.get_nowait()
        async with asyncio.timeout(None if math.isinf(wait_s) else wait_s):
            return await self.pieces.get()

    async def __aiter__(self) -> AsyncIterator[Pieces]:
        while (pieces := await self.next()) is not None:
            yield pieces


class Observer(Protocol):
    """Who counts. Called in the event loop."""

    def stepped(self, job: Job, which: int, step: Step) -> None:
        """A step of request number ``which``."""
        ...

    def ended(self, job: Job) -> None:
        """The job is over, in whatever way."""
        ...


class Driver:
    """Drives one engine for many jobs. All methods but the thread's own are called in the event loop.

    A job is refused with 429 once ``settings.max_waiting`` choices wait beyond those that run. Where there are several
    keys, none may hold more places than were free before its last: whoever fills the queue leaves room for the next
    caller. (Dynamic thresholds: Choudhury and Hahne 1998.)
    """

    def __init__(self, engine: Engine, switch: DraftSwitch, settings: Settings, observer: Observer) -> None:
        self.engine = engine
        self._switch = switch
        self._settings = settings
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._most = settings.max_running + settings.max_waiting
        self._choices = 0
        self._held: Counter[str] = Counter()
        self._mean_s = 1.0
        self._draining = False
        self._wake = threading.Condition()
        self._inbox: list[Callable[[], None]] = []
        self._live: list[Job] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sooner-engine", daemon=True)
        self._thread.start()

    # -- in the event loop -----------------------------------------------------------------------------------------

    async def submit(
        self,
        requests: Sequence[Request],
        started: float,
        drafter: Drafter | None = None,
        *,
        caller: str = "",
        timeout_s: float | None = None,
        name: str = "",
    ) -> Job:
        """A job for ``requests``, all accepted by the engine. ``started``: when it was asked for (`time.perf_counter`);
        ``timeout_s``: the server's own if None.

        Raises `InvalidRequest` for what the engine or the queue could never take, `Refusal` when the queue is full or
        the server goes down.
        """
        limit = self._settings.timeout_s if timeout_s is None else timeout_s
        job = Job(requests, started, limit, caller, drafter, name)
        if job.choices > self._most:
            raise InvalidRequest(f"n must be at most {self._most} on this server, not {job.choices}", "n")
        if self._draining:
            raise drained()
        self._take(job)
        admitted: asyncio.Future[None] = self._loop.create_future()
        self._post(lambda: self._admit(job, admitted))
        try:
            await asyncio.shield(admitted)
        except asyncio.CancelledError:
            admitted.add_done_callback(asyncio.Future.exception)  # nobody else will look at it
            self.cancel(job)
            raise
        return job

    def _take(self, job: Job) -> None:
        """Places for ``job``. Raises `Refusal`."""
        free = self._most - self._choices
        several = len(self._settings.keys) > 1
        most = free - self._held[job.caller] if several else free
        if job.choices > most:
            rounds = max(1.0, self._choices / self._settings.max_running)
            raise busy(min(60, math.ceil(self._mean_s * rounds)), own=job.choices <= free)
        self._choices += job.choices
        self._held[job.caller] += job.choices

    def _leave(self, job: Job) -> None:
        self._choices -= job.choices
        self._held[job.caller] -= job.choices
        self._held = +self._held  # those who hold none are forgotten

    def cancel(self, job: Job) -> None:
        """End ``job`` before the next pass; its cache is then free. Does nothing for one that has ended."""
        if not job.done:
            job.cancelled = True
            self._post(lambda: self._abort(job, None))

    def drain(self) -> None:
        """Accept nothing new; what is still running after ``drain_s`` is ended with an error."""
        if not self._draining:
            self._draining = True
            self._loop.call_later(self._settings.drain_s, self._post, self._abort_all)

    @property
    def waiting(self) -> int:
        """Choices that wait for a place."""
        return len(self.engine.batch.waiting)

    @property
    def running(self) -> int:
        """Choices in the current pass."""
        return len(self.engine.batch.running)

    @property
    def alive(self) -> bool:
        """Whether the thread that decodes is there."""
        return self._thread.is_alive()

    async def close(self) -> None:
        """End everything and the thread."""
        self._draining = True
        self._post(self._abort_all)
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    def _deliver(self, news: Sequence[tuple[Job, Pieces, bool]]) -> None:
        for job, pieces, done in news:
            for which, step in pieces:
                self._observer.stepped(job, which, step)
            if pieces:
                job.pieces.put_nowait(pieces)
            if done:
                job.done = True
                self._leave(job)
                self._mean_s += 0.1 * (time.perf_counter() - job.started - self._mean_s)
                job.pieces.put_nowait(None)
                self._observer.ended(job)

    def _refuse(self, job: Job, admitted: asyncio.Future[None], error: Exception) -> None:
        self._leave(job)
        if not admitted.done():
            admitted.set_exception(error)

    # -- in the engine's thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._obey():
            self._step()
            self._collect()

    def _obey(self) -> bool:
        """Do what was asked between two passes; waits for something to do. False to end."""
        with self._wake:
            while not (self._inbox or self._closing or self.engine.busy):
                self._wake.wait()
            inbox, self._inbox = self._inbox, []
            ending = self._closing and not inbox and not self.engine.busy
        for command in inbox:
            command()
        for job in self._live:
            if job.late:
                self._abort(job, too_slow(job.timeout_s))
        return not ending

    def _step(self) -> None:
        try:
            if self.engine.busy:
                self.engine.step()
        except Exception as error:  # a fault in the loop itself: these answers end, the server serves the next
            log.exception("a pass failed")
            for job in self._live:
                self._abort(job, TargetError(f"the engine failed in a pass: {type(error).__name__}: {error}"))

    def _admit(self, job: Job, admitted: asyncio.Future[None]) -> None:
        try:
            for request in job.requests:
                handle = self.engine.submit(request)
                job.handles.append(handle)
                job.seen.append(0)
                handle.started, handle.caller = job.started, job.caller
                if job.drafter is not None:
                    handle.drafter = job.drafter.name
                    for slot in handle.slots:
                        self._switch.assign(slot.sequence.id, job.drafter)
        except Exception as error:  # the engine refused one of them, or could not hold it
            self._release(job)
            self._call(self._refuse, job, admitted, error)
            return
        self._live.append(job)
        self._call(_resolve, admitted)

    def _abort(self, job: Job, failure: Failure | None) -> None:
        if job in self._live:
            job.failure = job.failure or failure
            for handle in job.handles:
                self._end(handle)

    def _abort_all(self) -> None:
        for job in self._live:
            self._abort(job, drained())

    def _release(self, job: Job) -> None:
        for handle in job.handles:
            self._end(handle)
            for slot in handle.slots:
                self._switch.release(slot.sequence.id)

    def _end(self, handle: Handle) -> None:
        try:
            self.engine.abort(handle)
        except Exception:  # a part that fails even here must not keep the places and the cache
            log.exception("an answer could not be ended in order")
            for slot in handle.slots:
                slot.sequence.end(Finish("error"))
                self.engine.batch.release(slot)

    def _collect(self) -> None:
        """Give the event loop what the last pass brought, at one go."""
        news: list[tuple[Job, Pieces, bool]] = []
        for job in self._live:
            pieces = []
            for which, handle in enumerate(job.handles):
                pieces += [(which, step) for step in handle.steps[job.seen[which] :]]
                job.seen[which] = len(handle.steps)
                if handle.error is not None and job.failure is None:
                    job.failure = handle.error
            done = job.failure is not None or all(handle.finished for handle in job.handles)
            if pieces or done:
                news.append((job, pieces, done))
        for job, _, done in news:
            if done:
                self._live.remove(job)
                self._release(job)
        if news:
            self._call(self._deliver, news)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop has closed: nobody listens any more
            log.debug("the event loop is gone")


def _resolve(admitted: asyncio.Future[None]) -> None:
    if not admitted.done():
        admitted.set_result(None)
