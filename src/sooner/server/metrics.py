"""What Prometheus sees: counters, gauges and histograms of one server, in a registry of its own.

Knows steps and jobs. Does not know HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sooner.server.driver import Job
from sooner.types import Step

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_GAPS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)


class Metrics:
    """Counts what a driver reports (`driver.Observer`). Every series carries ``model_name``; drafting also ``drafter``.

    With speculation the gap between chunks (``inter_token_latency_seconds``, its usual name) is not the time per token
    (``request_time_per_output_token_seconds``): both are there, and the second is the one to compare.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._drafts = self._counter("spec_decode_num_drafts", "Steps with a draft", "drafter")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Tokens drafted", "drafter")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Drafted tokens kept", "drafter")
        self._positions = self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens kept, by place",
            "drafter",
            "position",
        )
        self._prompt = self._counter("prompt_tokens", "Prompt tokens read or found in the cache")
        self._cached = self._counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache")
        self._generated = self._counter("generation_tokens", "Tokens written")
        self._success = self._counter("request_success", "Choices that ended, by why", "finished_reason")
        self._ttft = self._histogram("time_to_first_token_seconds", "From the request to its first token", _SECONDS)
        self._gap = self._histogram("inter_token_latency_seconds", "Between two chunks of one choice", _GAPS)
        self._tpot = self._histogram("request_time_per_output_token_seconds", "Mean per token after the first", _GAPS)
        self._whole = self._histogram("e2e_request_latency_seconds", "From the request to the end", _SECONDS)
        self._last: dict[tuple[int, int], float] = {}
        self.totals = Totals()

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Publish a gauge that is read when somebody looks."""
        gauge = Gauge(f"sooner:{name}", what, ["model_name"], registry=self.registry)
        gauge.labels(self._model).set_function(value)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def stepped(self, job: Job, which: int, step: Step) -> None:
        """Count one step."""
        now = time.perf_counter()
        if step.tokens:
            key = (job.handles[which].id, step.choice)
            last = self._last.get(key)
            (self._ttft if last is None else self._gap).observe(now - (last or job.started))
            self._last[key] = now
            self._generated.inc(len(step.tokens))
        self.totals.add(step)
        if len(step.draft):
            drafter, accepted = job.handles[which].drafter, step.accepted
            self._drafts.labels(self._model, drafter).inc()
            self._drafted.labels(self._model, drafter).inc(len(step.draft))
            self._accepted.labels(self._model, drafter).inc(accepted)
            for position in range(accepted):
                self._positions.labels(self._model, drafter, str(position)).inc()

    def ended(self, job: Job) -> None:
        """Count how a job ended."""
        now = time.perf_counter()
        for handle in job.handles:
            first = handle.slots[0]
            self._prompt.inc(first.sequence.prompt_length)
            self._cached.inc(first.cached or 0)
            self.totals.prompt += first.sequence.prompt_length
            for slot in handle.slots:
                sequence = slot.sequence
                reason = sequence.finish.reason if sequence.finish is not None else "error"
                self._success.labels(self._model, "error" if job.failure is not None else reason).inc()
                self._last.pop((handle.id, sequence.choice), None)
                begin = handle.first.get(sequence.choice)
                if begin is not None and sequence.emitted > 1:
                    took = handle.last[sequence.choice] - begin
                    self._tpot.observe(took / (sequence.emitted - 1))
        self._whole.observe(now - job.started)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        counter = Counter(f"sooner:{name}", what, ["model_name", *labels], registry=self.registry)
        return counter if labels else counter.labels(self._model)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"sooner:{name}", what, ["model_name"], buckets=buckets, registry=self.registry)
        return made.labels(self._model)


class Totals:
    """Plain sums for the log line."""

    def __init__(self) -> None:
        self.prompt = self.generated = self.drafts = self.drafted = self.accepted = 0

    def add(self, step: Step) -> None:
        """Count one step."""
        self.generated += len(step.tokens)
        if len(step.draft):
            self.drafts += 1
            self.drafted += len(step.draft)
            self.accepted += step.accepted

    def since(self, before: dict[str, Any]) -> dict[str, int]:
        """What was added since the ``vars`` of an earlier moment."""
        return {name: value - before.get(name, 0) for name, value in vars(self).items()}
