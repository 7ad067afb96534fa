"""A deployment of toy engines on a Ray cluster of this machine, and how tests speak to it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from ray_toy import open_toy
from sooner.engine import Engine
from sooner.integrations.ray import Replicas, app
from sooner.integrations.ray_cluster import connect
from sooner.integrations.ray_host import deploy
from sooner.server import Settings

CPUS = 0.1
"""What each replica claims of the machine."""


@dataclass(frozen=True)
class Deployment:
    """``url`` of a running one."""

    url: str

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=120)

    def chat(self, client: httpx2.Client, text: str | list[dict[str, str]], **more: Any) -> httpx2.Response:
        return client.post("/v1/chat/completions", json=body(text, **more))

    def replicas(self) -> set[str]:
        """The replicas that answer for their metrics."""
        return {line.split('replica="')[1].split('"')[0] for line in self.metrics() if 'replica="' in line}

    def running(self) -> bool:
        """Whether any replica has something to do."""
        lines = [line for line in self.metrics() if line.startswith("sooner:num_requests_running{")]
        return any(not line.endswith(" 0.0") for line in lines)

    def metrics(self) -> list[str]:
        """The lines of the page, which a busy machine may refuse for a while."""
        found: list[httpx2.Response] = []

        def look() -> bool:
            found.append(httpx2.get(f"{self.url}/metrics", timeout=30))
            return found[-1].status_code == 200

        self.until(look)
        return found[-1].text.splitlines()

    def kill(self, replica: str) -> None:
        """As if the machine had lost it."""
        import ray

        ray.kill(ray.get_actor(f"SERVE_REPLICA::sooner#Replica#{replica}", namespace="serve"))

    def until(self, what: Callable[[], bool], limit_s: float = 120) -> None:
        """Wait for what must come."""
        end = time.monotonic() + limit_s
        while not what():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.3)


def body(text: str | list[dict[str, str]], **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
    return {"messages": messages, "max_tokens": 8, "seed": 1, "temperature": 1, "ignore_eos": True, **more}


def answer(response: httpx2.Response) -> str:
    """The text of an answer that must be there."""
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """(Kind, value) of server-sent events, the last one ``("data", "[DONE]")``."""
    kind = "data"
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, value if value == "[DONE]" else json.loads(value)
            kind = "data"


@contextmanager
def deployed(
    replicas: Replicas = 2, opening: Callable[[], Engine] = open_toy, settings: Settings | None = None, **more: Any
) -> Iterator[Deployment]:
    """Replicas of the engine that ``opening`` makes, on a cluster of their own; ``more``: `app`'s options."""
    import ray
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    settings = settings or Settings(drain_s=5)
    assert connect(2)
    try:
        deploy(lambda: app(settings, opening, replicas=replicas, cpus=CPUS, **more), "127.0.0.1", port)
        yield Deployment(f"http://127.0.0.1:{port}")
    finally:
        serve.shutdown()
        ray.shutdown()
