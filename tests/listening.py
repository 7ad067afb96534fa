"""A server on a socket of this machine, in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx2

from sooner.engine import Engine
from sooner.server import Service, Settings
from sooner.server.host import bind, serve


@contextmanager
def listening_with(engine: Engine, settings: Settings | None = None) -> Iterator[tuple[str, Service]]:
    """A server over ``engine``: its address and its service."""
    service = Service(lambda: engine, settings or Settings())
    sock = bind("127.0.0.1", 0)
    address = f"http://127.0.0.1:{sock.getsockname()[1]}"
    thread = threading.Thread(target=serve, args=(service, sock))
    thread.start()
    try:
        wait_for(address)
        yield address, service
    finally:
        service.on_failure()  # the server leaves in order
        thread.join()


def wait_for(address: str) -> None:
    """Until the model is there."""
    for _ in range(2000):
        with suppress(httpx2.HTTPError):
            if httpx2.get(f"{address}/health").status_code == 200:
                return
        time.sleep(0.01)
    raise TimeoutError(address)
