"""sooner on Ray Serve: the same application as replicas that scale with their queues, each with an engine of its own.

Knows what is deployed and how it scales. Does not know how a request finds its replica, or how one answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from sooner.errors import InvalidRequest, nearest
from sooner.integrations.ray_cluster import demand_ray

if TYPE_CHECKING:
    from ray.serve import Application

    from sooner.engine import Engine
    from sooner.server import Settings

__all__ = ["Replicas", "app", "build"]

Replicas = int | Literal["auto"] | tuple[int, int]
"""How many: a fixed number, (fewest, most), or "auto": from one to what the cluster's processors hold now."""

_GRACE_S = 5.0
"""Seconds after the drain in which the last events reach their readers."""

_LOOK_BACK_S = 15.0
"""Seconds over which queues are averaged: Ray demands more than the ten between two of its reports."""


def app(
    settings: Settings | None = None,
    open_engine: Callable[[], Engine] | None = None,
    *,
    replicas: Replicas = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    ingresses: int = 1,
    idle_s: float = 600.0,
    busy_s: float = 10.0,
    **load: Any,
) -> Application:
    """An application for ``ray.serve.run`` or a Serve configuration file.

    ``load``: options of `sooner.load` (``model``, ``draft``, ``budget``, ...), the same for each replica; or
    ``open_engine`` makes the engine, where the replica runs. ``cpus`` and ``gpus``: what one replica holds; it computes
    with as many threads as whole ``cpus`` unless ``threads`` says otherwise. ``ingresses``: processes that read
    requests and route them. Above a fixed number, a replica is added when the mean queue has been longer than half of
    ``settings.max_running`` for ``busy_s`` seconds, and one goes, once its answers have ended, after ``idle_s`` seconds
    of less. Raises `MissingExtra` without Ray, `InvalidRequest` for numbers that make no sense.
    """
    demand_ray("sooner.integrations.ray")
    from ray import serve

    from sooner.integrations.ray_ingress import Ingress
    from sooner.integrations.ray_replica import Replica
    from sooner.server import Settings

    settings = settings or Settings()
    if cpus <= 0 or ingresses < 1:
        raise InvalidRequest("a replica needs a part of a processor, and a deployment an ingress", "cpus")
    if open_engine is None:
        open_engine = _loader(load, cpus, gpus, settings)
    elif load:
        raise InvalidRequest(f"{next(iter(load))} is an option of sooner.load: leave it or open_engine out")
    drain = settings.drain_s + _GRACE_S
    common = {"graceful_shutdown_timeout_s": drain, "graceful_shutdown_wait_loop_s": 0.5, "health_check_period_s": 5.0}
    replica = serve.deployment(Replica).options(
        name="Replica",
        max_ongoing_requests=2 * settings.max_running,
        max_queued_requests=max(1, settings.max_waiting),
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        request_router_config=_router(settings),
        **common,
        **_scale(replicas, cpus, settings, idle_s=idle_s, busy_s=busy_s),
    )
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        name="Ingress",
        num_replicas=ingresses,
        max_ongoing_requests=10_000,  # it holds them for the replicas, which refuse what is too much
        ray_actor_options={"num_cpus": 0},
        **common,
    )
    return ingress.bind(replica.bind(open_engine, settings), settings)


def build(args: Mapping[str, Any]) -> Application:
    """`app` from the ``args`` of a Serve configuration file: fields of `Settings`, options of `app` and of
    `sooner.load` side by side. API keys come from the variable SOONER_API_KEY, separated by spaces, not from the file.
    Raises `InvalidRequest` for names that are none of these."""
    from sooner.server import Settings

    given = dict(args)
    known = {field.name for field in fields(Settings)} - {"keys", "traces", "hosts"}
    limits = {name: given.pop(name) for name in known & given.keys()}
    keys = tuple(os.environ.get("SOONER_API_KEY", "").split())
    if "keys" in given or "api_key" in given:
        raise InvalidRequest("API keys do not belong into a file: put them into SOONER_API_KEY")
    if isinstance(given.get("replicas"), list):
        given["replicas"] = tuple(given["replicas"])
    return app(Settings(keys=keys, **limits), **given)


def _loader(load: Mapping[str, Any], cpus: float, gpus: float, settings: Settings) -> Callable[[], Engine]:
    import inspect

    import sooner

    known = inspect.signature(sooner.load).parameters
    for name in load:
        if name not in known:
            raise InvalidRequest(f"unknown option {name!r}{nearest(name, known)}", name)
    own = {"max_running": settings.max_running, "warm": True, "remember": len(settings.keys) < 2}
    if not gpus:
        own["threads"] = max(1, int(cpus))
    return partial(sooner.load, **{**own, **load})


def _scale(replicas: Replicas, cpus: float, settings: Settings, *, idle_s: float, busy_s: float) -> dict[str, Any]:
    if isinstance(replicas, bool) or (isinstance(replicas, str) and replicas != "auto"):
        raise InvalidRequest(f"replicas must be a number, a pair of numbers or auto, not {replicas!r}", "replicas")
    if isinstance(replicas, int):
        if replicas < 1:
            raise InvalidRequest(f"replicas must be at least 1, or auto, not {replicas}", "replicas")
        return {"num_replicas": replicas}
    fewest, most = (1, max(1, int(_processors() / cpus))) if isinstance(replicas, str) else replicas
    if not 1 <= fewest <= most:
        raise InvalidRequest(f"replicas must be (fewest, most) with 1 <= fewest <= most, not {replicas}", "replicas")
    config = {
        "min_replicas": fewest,
        "max_replicas": most,
        "target_ongoing_requests": max(1.0, settings.max_running / 2),
        "upscale_delay_s": busy_s,
        "downscale_delay_s": idle_s,
        "look_back_period_s": _LOOK_BACK_S,
    }
    return {"num_replicas": "auto", "autoscaling_config": config}


def _processors() -> float:
    import ray

    return float(ray.cluster_resources().get("CPU", 1.0)) if ray.is_initialized() else float(os.cpu_count() or 1)


def _router(settings: Settings) -> Any:
    from ray.serve.config import RequestRouterConfig

    return RequestRouterConfig(
        request_router_class="sooner.integrations.ray_router:AffinityRouter",
        request_router_kwargs={"places": settings.max_running},
    )
