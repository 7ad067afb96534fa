"""A deployment in the foreground: started, served until it is told to go, ended in order.

Knows Ray Serve's life and signals. Does not know what is deployed.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from sooner.errors import TargetError
from sooner.integrations.ray_cluster import connect, demand_ray, reason

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["deploy", "serve_until_told"]

log = logging.getLogger("sooner.server")

_NAME = "sooner"


def serve_until_told(
    make: Callable[[], Application], host: str, port: int, *, cpus: float, verbose: bool = False
) -> None:
    """Deploy what ``make`` returns once there is a cluster, and serve it on ``host`` and ``port`` until SIGTERM or
    SIGINT: running answers then have the deployment's own time to end. A second signal does not wait.

    ``cpus``: what the replicas hold together, for a cluster that is started here. Raises `MissingExtra` without Ray,
    `InvalidRequest` without a cluster, `TargetError` with the reason if no replica starts.
    """
    demand_ray("sooner serve --replicas")
    started = connect(cpus, verbose=verbose)
    import ray
    from ray import serve
    from ray.serve.exceptions import RayServeException

    told = _signals()
    try:
        deploy(make, host, port)
        log.info("ready, on Ray (%s)", "started here" if started else ray.get_runtime_context().gcs_address)
        told.wait()
        log.info("ending: running answers have time to")
    finally:
        with suppress(RayServeException):  # it never came to be
            serve.delete(_NAME)
        if started:
            serve.shutdown()
        ray.shutdown()


def deploy(make: Callable[[], Application], host: str, port: int) -> None:
    """Run the application on a cluster that is connected, and return once it answers. Raises `TargetError`."""
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(make(), name=_NAME, route_prefix="/", logging_config={"log_level": "WARNING"})
    except RuntimeError as error:
        raise TargetError(reason(_told(error))) from error


def _told(error: RuntimeError) -> str:
    """What Ray says of a deployment that failed; the engine's own reason stands in its status."""
    from ray import serve

    found = serve.status().applications.get(_NAME)
    parts = [found.message, *(one.message for one in found.deployments.values())] if found is not None else []
    return "\n".join([str(error), *parts])


def _signals() -> threading.Event:
    """Set at the first SIGTERM or SIGINT; the second ends the process."""
    told = threading.Event()

    def handle(number: int, frame: object) -> None:
        if told.is_set():
            os._exit(128 + number)
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return told
