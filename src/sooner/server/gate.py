"""What every request passes before anything of it is read: its host, its key, the size of its body.

Knows ASGI messages. Does not know what any path does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sooner.server.failures import Refusal, describe, too_large, unauthorised, unfinished
from sooner.server.keys import Keys
from sooner.server.settings import Settings

__all__ = ["Gate"]

_GUARDED = ("/v1/", "/metrics")

_SWALLOWED = 8
"""Times the limit that is read of a body that is too large, so that its sender gets to see the refusal."""


class Gate:
    """Middleware; ``request.state`` then has the ``salt`` of the caller's key and when it ``begun``. ``takes_files``:
    whether the model takes pictures or sounds, so that bodies are larger."""

    def __init__(self, app: ASGIApp, settings: Settings, takes_files: Callable[[], bool] = lambda: False) -> None:
        self._app = app
        self._keys = Keys(settings.keys)
        self._hosts = settings.hosts
        self._settings = settings
        self._takes_files = takes_files
        self._patience_s = settings.read_timeout_s

    @property
    def _limit(self) -> int:
        return self._settings.body_limit(files=self._takes_files())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with an error object."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        try:
            salt = self._admit(scope, Headers(scope=scope))
        except Refusal as refusal:
            if refusal.status_code == 413:
                await _swallow(receive, self._limit * _SWALLOWED)
            await answer(refusal, scope, receive, send)
            return
        scope.setdefault("state", {}).update(salt=salt, begun=begun)
        await self._app(scope, self._counting(receive), send)

    def _admit(self, scope: Scope, headers: Headers) -> str:
        if self._hosts is not None and _name(headers.get("host", "")) not in self._hosts:
            raise Refusal(403, "this server answers to its own names only, such as 127.0.0.1: see --host")
        salt = self._keys.salt(headers.get("authorization"))
        if salt is None and scope["path"].startswith(_GUARDED):
            raise unauthorised()
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._limit:
            raise too_large(self._limit)
        return salt or ""

    def _counting(self, receive: Receive) -> Receive:
        """``receive``, refusing a body that takes too long, or without a declared length once it is too long."""
        seen, more = 0, True
        until = asyncio.get_running_loop().time() + self._patience_s

        async def counted() -> Message:
            nonlocal seen, more
            try:
                async with asyncio.timeout_at(until if more else None):
                    message = await receive()
            except TimeoutError:
                raise unfinished(self._patience_s) from None
            seen += len(message.get("body", b""))
            more = message.get("more_body", False)
            if seen > self._limit:
                await _swallow(receive, self._limit * _SWALLOWED)
                raise too_large(self._limit)
            return message

        return counted


async def answer(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    """Reply with the error object of ``error``."""
    status, body, headers = describe(error)
    await JSONResponse(body, status, headers)(scope, receive, send)


async def _swallow(receive: Receive, most: int) -> None:
    while most > 0:
        message: Any = await receive()
        most -= len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return


def _name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[: host.find("]") + 1].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()
