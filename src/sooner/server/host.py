"""An application on a socket: binding, signals, and the order of going down.

Knows uvicorn. Does not know what the application does.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sooner.errors import InvalidRequest
from sooner.server.app import create_app
from sooner.server.service import Service

__all__ = ["bind", "is_loopback", "local_names", "serve"]

log = logging.getLogger("sooner.server")

_GRACE_S = 5.0
"""Seconds after the drain in which the last error events reach their readers."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises `InvalidRequest` naming the option that is at fault."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except OSError as error:
        where, reason = f"{host} port {port}", error.strerror or str(error)
        raise InvalidRequest(f"cannot listen on {where} ({reason}): choose another --port or --host") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def local_names(host: str) -> tuple[str, ...]:
    """The names by which a server that only this machine can reach may be addressed."""
    return tuple(dict.fromkeys(("127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host)))


def serve(service: Service, sock: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT: then nothing new is accepted, running answers have ``drain_s`` to end, and the
    function returns. A second signal does not wait. Raises what loading the model raised.
    """
    config = uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        http=_patient(service.settings.read_timeout_s),
        loop="asyncio",
        lifespan="on",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(service.settings.drain_s + _GRACE_S),
    )
    server = _Server(config, service)
    service.on_failure = server.leave
    server.run(sockets=[sock])
    if service.failure is not None:
        raise service.failure


def _patient(seconds: float) -> type[H11Protocol]:
    """uvicorn's connections, closed when they are without a request for ``seconds``, however much of one has arrived:
    uvicorn waits for the rest of a head, or of a body that was refused, for ever, and connections are few."""

    class Patient(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._rest()

        def _watch(self) -> None:
            """Wait while no request is being answered."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._rest()
            elif self._waiting is None and not self.transport.is_closing():
                self._waiting = self.loop.call_later(seconds, self._leave)

        def _leave(self) -> None:
            self._waiting = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

        def _rest(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return Patient


class _Server(uvicorn.Server):
    """uvicorn's server, draining the service when it is told to go, and returning instead of dying of the signal."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._own_loop: asyncio.AbstractEventLoop | None = None

    def leave(self) -> None:
        """Shut down in order."""
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to go."""
        self._own_loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second does not wait."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        if self._own_loop is not None:
            self._own_loop.call_soon_threadsafe(self._service.drain)
