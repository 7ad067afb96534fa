"""Reaching a Ray cluster, or starting one on this machine, and the reason why an engine does not start there.

Knows addresses and what Ray says. Does not know what runs there.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from importlib.util import find_spec

from sooner.errors import InvalidRequest, MissingExtra, SoonerError, one_line

__all__ = ["connect", "demand_ray", "failed", "out_of_memory", "reason"]

_STORE_BYTES = 200_000_000
"""Of shared memory for what passes between processes: requests and answers are small."""

_ANSWER_S = 5.0
"""Seconds in which a cluster must say a word."""

_SETTINGS = 4
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
"""How a client of gRPC begins: with a frame of settings. Whoever speaks it answers with one (RFC 9113, 3.4)."""

_FAILED = "sooner cannot start an engine: "
"""What stands before the reason, by which it is found again in all that Ray says."""


def demand_ray(what: str, module: str = "ray.serve") -> None:
    """Raises `MissingExtra` for ``what`` where Ray is not installed."""
    try:
        found = find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise MissingExtra(what, "ray")


def connect(cpus: float, *, verbose: bool = False) -> bool:
    """Reach the cluster that RAY_ADDRESS names, or start one here with ``cpus`` processors to hand out; whether it was
    started here. Raises `InvalidRequest` if nothing answers at the address, or Ray cannot start."""
    import ray

    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS", "")
    _reach(address)
    level = logging.INFO if verbose else logging.ERROR
    try:
        if address and address != "local":
            ray.init(address=address, log_to_driver=verbose, logging_level=level)
            return False
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody was asked
        # Ray's own watch ends its controller and the ingress first; the system ends whoever took the memory
        os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
        ray.init(
            address="local",
            num_cpus=max(1, round(cpus + 0.499)),
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            log_to_driver=verbose,
            logging_level=level,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if address:
            raise _nobody(address, one_line(error), "set RAY_AUTH_MODE=token if it asks for a token, ") from error
        raise InvalidRequest(f"Ray cannot start on this machine: {one_line(error)}") from error
    return True


def _reach(address: str) -> None:
    """Ray itself waits long for an address that is wrong, and without end where something else answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("", "auto", "local"):
        return
    if not host or not port.isdecimal():
        raise InvalidRequest(f"RAY_ADDRESS is {address!r}: write HOST:PORT, auto or local", "replicas")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S) as sock:
            if os.environ.get("RAY_USE_TLS", "").lower() not in ("1", "true") and not _speaks_grpc(sock):
                raise _nobody(address, "what answers there is not Ray")
    except (OSError, OverflowError) as error:
        raise _nobody(address, one_line(error)) from None


def _speaks_grpc(sock: socket.socket) -> bool:
    sock.sendall(_HELLO)
    said = b""
    while len(said) < 4 and (more := sock.recv(64)):
        said += more
    return said[3:4] == bytes([_SETTINGS])


def _nobody(address: str, reason: str, first: str = "") -> InvalidRequest:
    remedy = f"{first}start one with `ray start --head`, or unset RAY_ADDRESS to have one started here"
    return InvalidRequest(f"no Ray cluster answers at {address} ({reason}): {remedy}", "replicas")


def failed(error: Exception) -> RuntimeError:
    """``error``, which kept an engine from starting, as text: not every exception survives the way back."""
    said = str(error) if isinstance(error, SoonerError) else f"{type(error).__name__}: {error}"
    return RuntimeError(_FAILED + " ".join(said.split()))


def out_of_memory(said: str) -> bool:
    """Whether Ray ``said`` that it ended a process because its machine had no memory left. Of one that was killed from
    outside it only says that this may have been why."""
    return "running low on memory" in said or "OUT_OF_MEMORY" in said


def reason(said: str) -> str:
    """The line to be shown for what Ray ``said`` about an engine that did not start."""
    ours = re.findall(re.escape(_FAILED) + r"([^\n]+)", said)
    if ours:
        return _FAILED + str(ours[-1])[:500]
    if out_of_memory(said):
        return _FAILED + "it ran out of memory; give it a smaller --max-context, or have fewer --replicas"
    return _FAILED + one_line(RuntimeError(said))
