"""How an answer travels: in one piece or as server-sent events, watched for a caller who is gone.

Knows ASGI and jobs. Does not know what an answer says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from sooner.server.driver import Driver, Job
from sooner.server.failures import describe
from sooner.server.replies import Reply

__all__ = ["Stream", "Whole"]

_PING_S = 15.0
"""Seconds without a chunk after which a comment keeps proxies from giving up."""

Warned = Callable[[], str | None]


class Whole(JSONResponse):
    """The answer in one piece, once it is there. If the caller leaves, the job ends before the next pass."""

    def __init__(self, driver: Driver, job: Job, reply: Reply, warned: Warned) -> None:
        super().__init__(None)
        self._driver = driver
        self._job = job
        self._reply = reply
        self._warned = warned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait, then send."""
        watch = _watch(self._driver, self._job, receive)
        try:
            async for _ in self._job:
                pass
        finally:
            _leave(watch, self._driver, self._job)
        if self._job.cancelled:
            return  # nobody is there
        status, headers = 200, {"X-Request-Id": self._reply.id}
        if self._job.failure is not None:
            status, body, more = describe(self._job.failure)
            headers |= more
        else:
            body = self._reply.whole(self._job.handles, self._warned())
        await JSONResponse(body, status, headers)(scope, receive, send)


class Stream(EventSourceResponse):
    """The answer as server-sent events, one a step; a failure is an ``error`` event, and ``[DONE]`` is the end."""

    def __init__(
        self, driver: Driver, job: Job, reply: Reply, warned: Warned, *, usage: bool, write_timeout_s: float
    ) -> None:
        super().__init__(_nothing(), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.headers["X-Request-Id"] = reply.id
        self._driver = driver
        self._job = job
        self._reply = reply
        self._warned = warned
        self._with_usage = usage
        self._write_timeout_s = write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send chunks until the end, or until the caller leaves or takes none for too long."""
        watch = _watch(self._driver, self._job, receive)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self._chunks():
                async with asyncio.timeout(self._write_timeout_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            self._driver.cancel(self._job)  # and the connection is closed unfinished, which tells the reader
        finally:
            _leave(watch, self._driver, self._job)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            try:
                pieces = await self._job.next(_PING_S)
            except TimeoutError:
                yield KEEPALIVE_COMMENT
                continue
            if pieces is None:
                break
            for which, step in pieces:
                yield _event(self._reply.chunk(which, step))
        if self._job.cancelled:
            return
        if self._job.failure is not None:
            yield b"event: error\n" + _event(describe(self._job.failure)[1])
        elif self._with_usage:
            yield _event(self._reply.last(self._job.handles, self._warned()))
        yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


def _watch(driver: Driver, job: Job, receive: Receive) -> asyncio.Task[None]:
    """Cancel ``job`` when the caller is gone."""

    async def watching() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        driver.cancel(job)

    return asyncio.create_task(watching())


def _leave(watch: asyncio.Task[None], driver: Driver, job: Job) -> None:
    watch.cancel()
    driver.cancel(job)  # nothing is left running, whatever ended the sending
