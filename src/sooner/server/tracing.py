"""Traces of a server's requests, written by a thread of their own into a folder that does not grow for ever.

Knows jobs, their steps and recorders. Does not know the format, or HTTP. What it cannot write is said in the log and
hinders nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

from sooner.engine import Engine, Handle
from sooner.errors import InvalidRequest
from sooner.server.driver import Job, Observer
from sooner.trace import Recorder, TraceFile
from sooner.trace.folder import TraceFolder
from sooner.types import Step

__all__ = ["Observers", "Tracer"]

log = logging.getLogger("sooner.server")

_ALTERNATIVES = 3
_BACKLOG = 10_000
"""Steps that may wait for the disk."""
_TELL_S = 60.0
"""The log says at most so often that older traces were dropped."""


class Tracer:
    """Records every request of a driver (`driver.Observer`). ``withhold``: without what the callers wrote."""

    def __init__(self, engine: Engine, folder: TraceFolder, *, withhold: bool) -> None:
        engine.alternatives = _ALTERNATIVES
        self._engine = engine
        self._folder = folder
        self._withhold = withhold
        self._open: dict[int, tuple[TraceFile, Recorder]] = {}
        self._lost: dict[int, str] = {}
        self._failed: set[int] = set()
        self._dropped, self._told = 0, -_TELL_S
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sooner-traces", daemon=True)
        self._thread.start()

    def stepped(self, job: Job, which: int, step: Step) -> None:
        """Record a step; the first one begins the trace."""
        handle = job.handles[which]
        if self._waiting.qsize() > _BACKLOG:
            self._lost.setdefault(handle.id, "the disk was too slow for this trace: steps are missing")
        elif handle.id not in self._lost:
            self._waiting.put(partial(self._step, handle, job.name, step))

    def ended(self, job: Job) -> None:
        """Close the job's traces."""
        for handle in job.handles:
            failure = None if job.failure is None else str(job.failure)
            self._waiting.put(partial(self._end, handle, self._lost.pop(handle.id, failure)))

    def close(self) -> None:
        """Write what waits, and end."""
        self._waiting.put(None)
        self._thread.join(5.0)

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (task := self._waiting.get()) is not None:
            try:
                task()
            except Exception as error:  # a full disk, a folder that is gone: the answers go on
                log.warning("a trace is lost: %s", error)
        for file, _ in self._open.values():
            file.close()

    def _step(self, handle: Handle, name: str, step: Step) -> None:
        if step.index == 0 and handle.id not in self._open and handle.id not in self._failed:
            file = TraceFile(self._folder.new(handle.id), private=True)
            recorder = Recorder(file.write, self._engine, handle, withhold=self._withhold, id=name)
            self._open[handle.id] = file, recorder
        if handle.id not in self._open:
            return
        try:
            self._open[handle.id][1].step(step)
        except Exception:
            self._failed.add(handle.id)
            file, _ = self._open.pop(handle.id)
            with suppress(InvalidRequest):
                file.close()
            file.path.unlink(missing_ok=True)
            raise

    def _end(self, handle: Handle, failure: str | None) -> None:
        self._failed.discard(handle.id)
        if handle.id not in self._open:
            return
        file, recorder = self._open.pop(handle.id)
        with file:
            recorder.finish(self._engine.completion(handle) if handle.finished else None, failure)
        self._dropped += self._folder.keep(file.path)
        if self._dropped and time.monotonic() > self._told + _TELL_S:
            log.info("%d older traces made room in %s", self._dropped, self._folder.path)
            self._dropped, self._told = 0, time.monotonic()


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def stepped(self, job: Job, which: int, step: Step) -> None:
        """A step of request number ``which``."""
        for observer in self._observers:
            observer.stepped(job, which, step)

    def ended(self, job: Job) -> None:
        """The job is over, in whatever way."""
        for observer in self._observers:
            observer.ended(job)
