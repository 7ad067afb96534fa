"""Whose time a step takes besides its pass: the controller's, the drafter's, the engine's.

Knows an engine and a clock. Does not know speed-ups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from controller_runs import default_drafter

from sooner.bench.workload import Item
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.protocols import Controller, Drafter
from sooner.types import Sampling

__all__ = ["PARTS", "Timed", "quantiles", "timed_steps"]

PARTS = ("controller", "drafter", "verify", "engine", "pass")
"""Whose milliseconds are counted: budgets, select and observe; propose and observe; verifying and committing; the
engine's rest (layout of works, settling); and the target's pass."""


class Timed:
    """Any part, with the milliseconds that its calls have taken."""

    def __init__(self, part: object) -> None:
        self._part = part
        self.ms = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        return self._timed(found) if callable(found) else found

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self.ms += (time.perf_counter() - begin) * 1e3

        return timed


def timed_steps(
    engine: Engine, groups: Sequence[Sequence[Item]], sampling: Sampling, *, drafting: bool
) -> tuple[dict[str, list[float]], list[tuple[int, ...]]]:
    """Milliseconds of each part at every decoding step, and the texts. The engine keeps drafter and controller."""
    kept = engine.drafter, engine.controller
    controller = Timed(engine.controller if drafting else FixedController(0))
    drafter = Timed(default_drafter(engine)) if drafting else Timed(None)
    engine.controller = cast(Controller, controller)
    engine.drafter = cast(Drafter, drafter) if drafting else None
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    texts: list[tuple[int, ...]] = []
    try:
        for number, group in enumerate(groups):
            salt = f"own {drafting} {sampling.temperature} {number}"
            handles = [engine.submit(engine.request(item.prompt, sampling, salt=salt)) for item in group]
            while not all(handle.finished for handle in handles):
                before = controller.ms, drafter.ms
                steps = engine.step()
                if steps and all(step.index for step in steps):
                    whole = steps[0]
                    own = controller.ms - before[0], drafter.ms - before[1]
                    rest = whole.draft_ms + whole.overhead_ms - sum(own)
                    for name, value in zip(PARTS, (*own, whole.verify_ms, rest, whole.score_ms), strict=True):
                        found[name].append(value)
            texts += [tuple(token for step in handle.steps for token in step.tokens) for handle in handles]
    finally:
        engine.drafter, engine.controller = kept
    return found, texts


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and mean, in ms."""
    if not values:
        return {}
    median, p95 = np.percentile(values, [50, 95])
    return {"median": float(median), "p95": float(p95), "mean": float(np.mean(values))}
