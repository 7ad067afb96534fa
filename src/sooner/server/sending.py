"""How an answer travels: in one piece or as server-sent events, watched for a caller who is gone.

Knows ASGI and jobs. Does not know what an answer says.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from sooner.server.driver import Driver, Job
from sooner.server.failures import describe
from sooner.server.figures import usage
from sooner.server.otel import Span
from sooner.server.replies import Reply

__all__ = ["Answer", "Stream", "Whole"]

log = logging.getLogger("sooner.server")

_PING_S = 15.0
"""Seconds without a chunk after which a comment keeps proxies from giving up."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be sent: a job's answer as ``reply`` writes it. ``traced`` opens the request's span."""

    driver: Driver
    job: Job
    reply: Reply
    warned: Callable[[], str | None]
    traced: Callable[[], AbstractContextManager[Span]]

    def watch(self, receive: Receive) -> asyncio.Task[None]:
        """Cancel the job when the caller is gone."""

        async def watching() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.driver.cancel(self.job)

        return asyncio.create_task(watching())

    def leave(self, watch: asyncio.Task[None], span: Span) -> None:
        """Nothing is left running, whatever ended the sending."""
        watch.cancel()
        self.driver.cancel(self.job)
        job = self.job
        counted = usage(job.handles)
        tokens = {f"gen_ai.usage.{side}_tokens": counted[name] for side, name in _SIDES}
        drafted = sum(len(step.draft) for handle in job.handles for step in handle.steps)
        accepted = sum(step.accepted for handle in job.handles for step in handle.steps)
        span.set({**tokens, "sooner.draft_tokens": drafted, "sooner.accepted_tokens": accepted})
        if job.failure is not None or job.cancelled:
            span.set({"error.type": "cancelled" if job.failure is None else type(job.failure).__name__})


_SIDES = (("input", "prompt_tokens"), ("output", "completion_tokens"))


class Whole(JSONResponse):
    """The answer in one piece, once it is there. If the caller leaves, the job ends before the next pass."""

    def __init__(self, answer: Answer, *, write_timeout_s: float) -> None:
        super().__init__(None)
        self._answer = answer
        self._write_timeout_s = write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait, then send."""
        answer, job = self._answer, self._answer.job
        with answer.traced() as span:
            watch = answer.watch(receive)
            try:
                async for _ in job:
                    pass
            finally:
                answer.leave(watch, span)
        if job.cancelled:
            return  # nobody is there
        status, headers = 200, {"X-Request-Id": answer.reply.id}
        if job.failure is not None:
            status, body, more = describe(job.failure)
            headers |= more
        else:
            body = answer.reply.whole(job.handles, answer.warned())
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await JSONResponse(body, status, headers)(scope, receive, send)
        except TimeoutError:
            log.debug("%s: its reader takes nothing", answer.reply.id)


class Stream(EventSourceResponse):
    """The answer as server-sent events, one a step; a failure is an ``error`` event, and ``[DONE]`` is the end."""

    def __init__(self, answer: Answer, *, usage: bool, write_timeout_s: float) -> None:
        super().__init__(_nothing(), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.headers["X-Request-Id"] = answer.reply.id
        self._answer = answer
        self._with_usage = usage
        self._write_timeout_s = write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send chunks until the end, or until the caller leaves or takes none for too long."""
        with self._answer.traced() as span:
            watch = self._answer.watch(receive)
            try:
                await self._send(send)
            finally:
                self._answer.leave(watch, span)

    async def _send(self, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in self._chunks():
                async with asyncio.timeout(self._write_timeout_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.debug("%s: its reader takes nothing", self._answer.reply.id)  # unfinished, which tells the reader

    async def _chunks(self) -> AsyncIterator[bytes]:
        job, reply = self._answer.job, self._answer.reply
        while True:
            try:
                pieces = await job.next(_PING_S)
            except TimeoutError:
                yield KEEPALIVE_COMMENT
                continue
            if pieces is None:
                break
            for which, step in pieces:
                yield _event(reply.chunk(which, step))
        if job.cancelled:
            return
        if job.failure is not None:
            yield b"event: error\n" + _event(describe(job.failure)[1])
        elif self._with_usage:
            yield _event(reply.last(job.handles, self._answer.warned()))
        yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n\n"


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""
