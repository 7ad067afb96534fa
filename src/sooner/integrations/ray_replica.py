"""One replica: sooner's own application and engine, asked by way of Ray instead of a socket.

Knows the server and ASGI messages. Does not know how a request was routed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from ray import serve
from starlette.types import Message

from sooner.engine import Engine
from sooner.integrations.ray_cluster import failed
from sooner.integrations.ray_metrics import RayMetrics
from sooner.server import Service, Settings, create_app

__all__ = ["REPLICA_HEADER", "Replica"]

REPLICA_HEADER = b"x-sooner-replica"
"""The header that says which replica answered."""

_NAMED = b"x-request-id"
"""The header that Ray's own door adds to every reply: the caller's, else one that Ray's logs know."""


class Replica:
    """The deployment that holds an engine. Its constructor returns once the model is there."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it, in the loop in which it then calls the methods
        self, open_engine: Callable[[], Engine], settings: Settings
    ) -> None:
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._running: set[asyncio.Task[None]] = set()
        if settings.traces is not None:
            settings = replace(settings, traces=settings.traces.within(self._name))
        self._service = Service(open_engine, settings, RayMetrics)
        self._app = create_app(self._service)
        await self._service.start()
        failure = self._service.failure
        if failure is not None:
            raise failed(failure)

    def check_health(self) -> None:
        """Ray asks from time to time, and replaces a replica that raises."""
        if self._service.status != "ready" or not self._service.ready.driver.alive:
            raise RuntimeError(f"the engine of replica {self._name} is gone ({self._service.status})")

    async def metrics(self) -> tuple[str, str]:
        """The replica's name and its page of metrics."""
        return self._name, self._service.ready.metrics.render().decode()

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
        """The application's messages for one HTTP request. Leaving early tells it that the caller is gone."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if unread:
                return unread.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        task = asyncio.create_task(self._app({**scope, "type": "http", "state": {}}, receive, messages.put))
        self._running.add(task)
        task.add_done_callback(lambda _: messages.put_nowait(None))
        task.add_done_callback(self._running.discard)
        try:
            while (message := await messages.get()) is not None:
                if message["type"] == "http.response.start":
                    headers = [pair for pair in message["headers"] if pair[0].lower() != _NAMED]
                    message["headers"] = [*headers, (REPLICA_HEADER, self._name.encode())]
                yield message
            task.result()
        finally:
            gone.set()
