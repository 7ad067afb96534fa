"""A server on a toy engine, in this process: the application, and OpenAI's clients for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from fastapi import FastAPI
from openai import AsyncOpenAI

from commandline import Joined
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.server import Service, Settings, create_app
from sooner.targets.toy import ToyTarget
from toy import ToyCodec, TreeDrafter, V

MESSAGES: Any = [{"role": "user", "content": "abc"}]


def toy_engine(target: ToyTarget | None = None, **options: Any) -> Engine:
    """An engine with a drafter that is often wrong, for a chat model named toy."""
    defaults: dict[str, Any] = {"drafter": TreeDrafter(0), "controller": FixedController(6), "template": Joined()}
    options = defaults | options
    return Engine(target or ToyTarget(V), ToyCodec(), name="toy", **options)


@asynccontextmanager
async def serving(
    engine: Engine | Callable[[], Engine] | None = None, settings: Settings | None = None, *, wait: bool = True
) -> AsyncIterator[tuple[FastAPI, Service]]:
    """The application, its model loaded (unless ``wait`` is false)."""
    made = engine or toy_engine()
    service = Service(made if callable(made) else lambda: made, settings or Settings())
    app = create_app(service)
    loading = service.start()
    try:
        if wait:
            await loading
        yield app, service
    finally:
        await service.stop()


@asynccontextmanager
async def client(app: FastAPI, key: str = "none") -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's client, speaking to ``app`` without a socket."""
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test")
    async with AsyncOpenAI(api_key=key, base_url="http://test/v1", http_client=http, max_retries=0) as openai:
        yield openai


@asynccontextmanager
async def raw(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """A plain HTTP client for ``app``."""
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http
