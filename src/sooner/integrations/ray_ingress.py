"""The door of a deployment: it reads a request, finds out to whom it belongs, and passes a replica's answer on.

Knows ASGI and a handle of Ray Serve. Does not know what a request asks for.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, TaskCancelledError, WorkerCrashedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sooner.integrations.ray_affinity import affinity_key
from sooner.integrations.ray_cluster import out_of_memory
from sooner.integrations.ray_metrics import merged
from sooner.server import Settings
from sooner.server.failures import Refusal, busy, describe, loading, too_slow
from sooner.server.gate import Gate, answer

__all__ = ["Forward", "Ingress"]

log = logging.getLogger("sooner.server")

_TRIES = 3
"""Replicas that are asked before a request that has not begun is given up."""

_LOOK_S = 5.0
"""Seconds in which a replica must answer what needs no model, such as /health."""


class Ingress:
    """The deployment that HTTP requests reach: `Forward` behind the server's own `Gate`."""

    def __init__(self, replicas: DeploymentHandle[Any], settings: Settings) -> None:
        self._forward, self._settings = Forward(replicas, settings), settings

    async def __serve_build_asgi_app__(self) -> ASGIApp:  # Ray Serve's name for it
        """The application, once the constructor has run."""
        return Gate(self._forward, self._settings)


class Forward:
    """An ASGI application that has each request answered by a replica.

    A request that no byte was sent of yet when its replica dies is asked of another; the reader of one that has begun
    gets an ``error`` event and the end. When the caller leaves, the replica stops before its next pass.
    """

    def __init__(self, replicas: DeploymentHandle[Any], settings: Settings) -> None:
        self._replicas = replicas
        self._ask = replicas.options(stream=True, method_name="answer")
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or take part in starting and ending."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        if scope["type"] != "http":
            return
        try:
            body = await _read(receive)
            if body is None:
                return
            if scope["path"] == "/metrics":
                await self._metrics(scope, receive, send)
                return
            relay = asyncio.create_task(self._relay(scope, body, _Answer(send)))
            watch = asyncio.create_task(_gone(receive))
            try:
                await asyncio.wait({relay, watch}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (relay, watch):
                    task.cancel() if not task.done() else None
            await asyncio.gather(relay, return_exceptions=True)
            if not relay.cancelled() and (error := relay.exception()) is not None:
                raise error
        except Exception as error:  # nothing has been sent yet: `_relay` sees to the rest
            await answer(error, scope, receive, send)

    async def _relay(self, scope: Scope, body: bytes, to: _Answer) -> None:
        """Have a replica answer. Raises what is to be said instead, as long as nothing was said yet."""
        asks = scope["method"] == "POST"
        head = {name: scope[name] for name in _HEAD if name in scope}
        key = affinity_key(Headers(scope=scope).get("authorization", "").encode(), body) if asks else ""
        limit = self._settings.timeout_s if asks else _LOOK_S
        for _ in range(_TRIES):
            try:
                await self._once(head, body, key, to, limit)
                return
            except Exception as error:
                failure, again = _failure(error, limit, asks=asks)
            if to.begun:
                await to.break_off(failure)
                return
            if not again:
                break
        raise failure

    async def _once(self, head: dict[str, Any], body: bytes, key: str, to: _Answer, limit: float) -> None:
        response = self._ask.options(session_id=key).remote(head, body)
        ended = False
        try:
            async with asyncio.timeout(limit) as until:
                async for message in response:
                    until.reschedule(None)  # from here on the replica watches the time
                    await to.send(message)
            ended = True
        except asyncio.CancelledError:
            if (own := asyncio.current_task()) is not None and own.cancelling():
                raise  # the caller left
            raise TaskCancelledError from None  # the replica was told to stop
        finally:
            if not ended:
                response.cancel()

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            pages = await self._replicas.broadcast("metrics").results_async(timeout_s=_LOOK_S)
        except (TimeoutError, RayActorError, DeploymentUnavailableError):
            raise loading() from None
        headers = {"content-type": CONTENT_TYPE_PLAIN_0_0_4}
        await PlainTextResponse(merged(dict(pages)), headers=headers)(scope, receive, send)


_LOST = (RayActorError, TaskCancelledError, NodeDiedError, ObjectLostError, WorkerCrashedError)
"""What Ray raises when a replica, or the machine under it, is gone."""

_HEAD = ("http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers", "client")
"""What a replica is told of a request's scope: what can travel, and is not the server's own."""


class _Answer:
    """Where an answer goes. Its start is held back until there is something after it: till then it can begin anew."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._events = False
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if not self.begun and self._start is not None:
            self.begun = True
            self._events = b"text/event-stream" in dict(self._start["headers"]).get(b"content-type", b"")
            await self._send(self._start)
        await self._send(message)

    async def break_off(self, error: Exception) -> None:
        """End an answer of which a part was sent."""
        last = b""
        if self._events:
            last = b"event: error\ndata: " + json.dumps(describe(error)[1]).encode() + b"\n\ndata: [DONE]\n\n"
        await self._send({"type": "http.response.body", "body": last, "more_body": False})


def _failure(error: Exception, limit: float, *, asks: bool) -> tuple[Exception, bool]:
    """What is to be said of ``error``, and whether another replica may do better."""
    if isinstance(error, TimeoutError):
        return too_slow(limit) if asks else loading(), False
    if isinstance(error, BackPressureError):
        return busy(1), False
    if isinstance(error, DeploymentUnavailableError):
        return loading(), False
    if not isinstance(error, _LOST):
        return error, False
    said = " ".join(str(error).split())
    log.warning("a replica was lost: %s", said[:500])
    if out_of_memory(said):
        message = "the replica ran out of memory: give it a smaller --max-context or --max-running, or more memory"
        return Refusal(503, message, kind="server_error", code="replica_out_of_memory"), True
    message = "the replica was lost: send the request again"
    return Refusal(503, message, kind="server_error", code="replica_lost"), True


async def _read(receive: Receive) -> bytes | None:
    """A request's whole body, None if its sender left. Raises what `Gate` refuses."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _live(receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})
