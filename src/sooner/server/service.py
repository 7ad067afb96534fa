"""One server's life: loading, serving, draining; and what its parts are.

Knows engine, driver, reader and metrics. Does not know paths or HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from sooner.engine import Engine
from sooner.errors import SoonerError
from sooner.loading import make_drafter
from sooner.protocols import Drafter, Hearing, Seeing
from sooner.server.driver import Driver
from sooner.server.failures import busy, loading, too_slow
from sooner.server.metrics import Metrics
from sooner.server.reading import Asked, Reader
from sooner.server.replies import system_fingerprint
from sooner.server.schema import CommonBody
from sooner.server.settings import Settings
from sooner.server.switch import DraftSwitch, Specs
from sooner.server.tracing import Observers, Tracer

__all__ = ["Ready", "Service"]

log = logging.getLogger("sooner.server")

Body = TypeVar("Body", bound=CommonBody)


class Ready:
    """The parts of a server whose model is there. Made in the event loop."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Callable[[str], Metrics] = Metrics) -> None:
        self.engine = engine
        self.created = int(time.time())
        self.fingerprint = system_fingerprint(engine.fingerprint)
        self.switch = _switched(engine)
        self.metrics = metrics(engine.name)
        self.tracer = _tracer(engine, settings)
        observer = self.metrics if self.tracer is None else Observers((self.metrics, self.tracer))
        self.driver = Driver(engine, self.switch, settings, observer)
        self.reader = Reader(engine, self.switch, settings)
        self._settings = settings
        self._heavy = ThreadPoolExecutor(1, thread_name_prefix="sooner-heavy")
        self._queued = 0
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        watch = self.metrics.watch
        watch("num_requests_running", "Choices in the current pass", lambda: self.driver.running)
        watch("num_requests_waiting", "Choices that wait for a place", lambda: self.driver.waiting)
        watch("num_preemptions", "Choices sent back to wait so far", lambda: engine.batch.preemptions)
        watch("kv_cache_usage_perc", "Share of the KV cache that is held, 0 to 1", lambda: cache_usage(engine))

    async def read(self, read: Callable[[Body, str], Asked], body: Body, salt: str) -> Asked:
        """``read(body, salt)`` in a thread. Heavy bodies wait for one another, each key in its turn, and none waits for
        them that is not heavy.

        Raises what reading raises, and `Refusal` when too many wait or it takes longer than the answer may.
        """
        loop = asyncio.get_running_loop()
        if not body.heavy:
            return await loop.run_in_executor(None, read, body, salt)
        if self._queued > self._settings.max_waiting:
            raise busy(1)
        limit = min(body.timeout or math.inf, self._settings.timeout_s)
        self._queued += 1
        try:
            async with asyncio.timeout(limit), self._turns[salt]:
                return await loop.run_in_executor(self._heavy, read, body, salt)
        except TimeoutError:
            raise too_slow(limit) from None
        finally:
            self._queued -= 1

    async def close(self) -> None:
        """End everything that runs."""
        await self.driver.close()
        if self.tracer is not None:
            await asyncio.sleep(0)  # the last answers are still being reported
            await asyncio.to_thread(self.tracer.close)
        self._heavy.shutdown(wait=False, cancel_futures=True)

    def warning(self) -> str | None:
        """What the engine complains of."""
        return self.engine.warning or self.switch.warning


class Service:
    """A server from its first moment: ``open_engine`` runs in a thread while every request is told to wait.
    ``metrics`` makes what counts, from the model's name."""

    def __init__(
        self, open_engine: Callable[[], Engine], settings: Settings, metrics: Callable[[str], Metrics] = Metrics
    ) -> None:
        self.settings = settings
        self._metrics = metrics
        self.status: Literal["loading", "ready", "draining", "failed"] = "loading"
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._open_engine = open_engine
        self._ready: Ready | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> Ready:
        """The parts. Raises `Refusal` (503) while there are none."""
        if self._ready is None:
            raise loading()
        return self._ready

    @property
    def takes_files(self) -> bool:
        """Whether the model, as far as it is there, takes pictures or sounds."""
        return self._ready is not None and isinstance(self._ready.engine.target, Seeing | Hearing)

    def start(self) -> asyncio.Task[None]:
        """Begin to load; the task ends when the model is there or has failed."""
        task = asyncio.create_task(self._load())
        self._tasks.append(task)
        return task

    def drain(self) -> None:
        """Accept nothing new; running answers have ``drain_s`` left."""
        self.status = "draining"
        if self._ready is not None:
            self._ready.driver.drain()

    async def stop(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._ready is not None:
            await self._ready.close()

    async def _load(self) -> None:
        try:
            engine = await asyncio.to_thread(self._open_engine)
        except Exception as error:
            self.failure, self.status = error, "failed"
            if not isinstance(error, SoonerError):
                log.exception("the model could not be loaded")
            self.on_failure()
            return
        self._ready = Ready(engine, self.settings, self._metrics)
        if self.status == "loading":
            self.status = "ready"
            log.info("%s is ready", engine.name or "the model")
        self._tasks.append(asyncio.create_task(self._report(self._ready)))

    async def _report(self, ready: Ready) -> None:
        """A line every ``report_s`` seconds in which something was done."""
        before: dict[str, int] = {}
        while True:
            await asyncio.sleep(self.settings.report_s)
            done = ready.metrics.totals.since(before)
            before = dict(vars(ready.metrics.totals))
            if any(done.values()) or ready.driver.running:
                log.info("%s", report_line(ready, done, self.settings.report_s))


def report_line(ready: Ready, done: dict[str, int], seconds: float) -> str:
    """What happened in the last ``seconds``."""
    line = (
        f"running {ready.driver.running}, waiting {ready.driver.waiting}, "
        f"prompt {done['prompt'] / seconds:.1f} tokens/s, generation {done['generated'] / seconds:.1f} tokens/s, "
        f"KV cache {100 * cache_usage(ready.engine):.0f} %"
    )
    if done["drafts"]:
        length = 1 + done["accepted"] / done["drafts"]
        line += f", acceptance length {length:.2f}, {done['accepted']} of {done['drafted']} drafted tokens kept"
    return line


def cache_usage(engine: Engine) -> float:
    """The share of the target's cache blocks that someone holds, 0 to 1; 0 for targets that do not count them."""
    pool = getattr(engine.target, "pool", None)
    return float(pool.held / pool.size) if pool is not None else 0.0


def _tracer(engine: Engine, settings: Settings) -> Tracer | None:
    if settings.traces is None:
        return None
    without = "" if settings.log_prompts else ", without prompts (--log-prompts)"
    log.info("traces go to %s%s", settings.traces.path, without)
    return Tracer(engine, settings.traces, withhold=not settings.log_prompts)


def _switched(engine: Engine) -> DraftSwitch:
    """Put the switch between the engine and its drafter."""

    def make(specs: Specs) -> Drafter:
        model = str(engine.target.fingerprint.get("model", ""))
        drafter = make_drafter(list(specs), engine.target, engine.codec, model, opening=engine.open_model)
        assert drafter is not None
        return drafter

    engine.drafter = switch = DraftSwitch(engine.drafter, make)
    return switch
