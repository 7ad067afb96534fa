"""The server's figures in Ray's metric classes too, and the figures of several replicas on one page.

Knows both kinds of metrics. Does not know what is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from ray.serve import metrics as ray_metrics

from sooner.server.driver import Job
from sooner.server.metrics import Metrics
from sooner.types import Step

__all__ = ["RayMetrics", "merged"]

_EVERY_S = 1.0
"""Seconds between two looks at what is only published when somebody looks."""


class RayMetrics(Metrics):
    """`Metrics` that also go through Ray's classes, where each node's agent exports them.

    The names are the same but for what Ray demands: ``sooner_`` for ``sooner:`` (it forbids colons), and its own
    ``ray_`` before it. Ray adds the labels ``deployment``, ``replica`` and ``application``.
    """

    def __init__(self, model: str) -> None:
        self._watched: list[tuple[Any, Callable[[], float]]] = []
        self._looked = 0.0
        super().__init__(model)

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Publish a gauge; Ray gets it at most once a second while something happens."""
        super().watch(name, what, value)
        gauge = ray_metrics.Gauge(f"sooner_{name}", description=what, tag_keys=("model_name",))
        self._watched.append((gauge, value))

    def stepped(self, job: Job, which: int, step: Step) -> None:
        """Count one step."""
        super().stepped(job, which, step)
        if time.monotonic() - self._looked > _EVERY_S:
            self._look()

    def ended(self, job: Job) -> None:
        """Count how a job ended."""
        super().ended(job)
        self._look()

    def _look(self) -> None:
        self._looked = time.monotonic()
        for gauge, value in self._watched:
            gauge.set(value(), tags={"model_name": self._model})

    def _counter(self, name: str, what: str, *labels: str) -> Any:
        names = ("model_name", *labels)
        local = Counter(f"sooner:{name}", what, names, registry=self.registry)
        both = _Both(local, ray_metrics.Counter(f"sooner_{name}", description=what, tag_keys=names), names)
        return both if labels else both.labels(self._model)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Any:
        names = ("model_name",)
        local = Histogram(f"sooner:{name}", what, names, buckets=buckets, registry=self.registry)
        ray = ray_metrics.Histogram(f"sooner_{name}", description=what, boundaries=list(buckets), tag_keys=names)
        return _Both(local, ray, names).labels(self._model)


class _Both:
    """A metric of each kind, told the same."""

    def __init__(self, local: Any, ray: Any, names: tuple[str, ...], tags: Mapping[str, str] | None = None) -> None:
        self._local, self._ray, self._names = local, ray, names
        self._tags = dict(tags or {})

    def labels(self, *values: str) -> _Both:
        return _Both(self._local.labels(*values), self._ray, self._names, dict(zip(self._names, values, strict=True)))

    def inc(self, amount: float = 1) -> None:
        self._local.inc(amount)
        if amount > 0:  # Ray refuses to add nothing
            self._ray.inc(amount, tags=self._tags)

    def observe(self, value: float) -> None:
        self._local.observe(value)
        self._ray.observe(value, tags=self._tags)


def merged(pages: Mapping[str, str]) -> bytes:
    """The pages of several replicas as one: every sample has a label ``replica``, the page's name."""
    registry = CollectorRegistry()
    registry.register(_Pages(pages))
    return generate_latest(registry)


class _Pages(Collector):
    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, page in self._pages.items():
            for family in text_string_to_metric_families(page):
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                whole.samples += [one._replace(labels={**one.labels, "replica": name}) for one in family.samples]
        yield from families.values()
