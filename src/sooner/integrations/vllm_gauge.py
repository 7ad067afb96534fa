"""What vLLM's passes cost with so many requests side by side, measured in passing: its first passes draft set widths.

Knows widths and milliseconds. Does not know drafts, texts or vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sooner.control.cost import NOMINAL, CostCurve
from sooner.control.fixed import FixedController
from sooner.control.goodput import GoodputController
from sooner.errors import SoonerError
from sooner.protocols import Controller
from sooner.store.cache import recall, remember

__all__ = ["Gauge", "Pacing", "widths"]

_ROUNDS = 3
"""How often each width is measured; the quickest counts."""

_PATIENCE = 3
"""Tries per measurement that may fail (a prompt was read in the same pass) before what there is has to do."""

_WIDEST = 256
"""Rows of a pass beyond which nothing is measured: by then a further one costs what the last did."""


def widths(most: int) -> tuple[int, ...]:
    """Rows of a request in the passes to measure, where at most ``most`` tokens are drafted: powers of two, and all."""
    return (*(1 << i for i in range(5) if 1 << i <= 0.7 * (most + 1)), most + 1)


class Gauge:
    """Measurements of one size of batch: ``widths`` in turns, each `_ROUNDS` times."""

    def __init__(self, widths: Sequence[int]) -> None:
        self._widths = tuple(widths)
        self._seen: dict[int, list[tuple[int, float]]] = {width: [] for width in self._widths}
        self._tries = 0

    @property
    def wanted(self) -> int | None:
        """Rows that each request of the next pass should feed; None if enough is known, or enough was tried."""
        fewest = min(len(seen) for seen in self._seen.values())
        if fewest >= _ROUNDS or self._tries >= _PATIENCE * _ROUNDS * len(self._widths):
            return None
        return next(width for width in self._widths if len(self._seen[width]) == fewest)

    def tried(self) -> None:
        """A pass of the wanted width was asked for."""
        self._tries += 1

    def took(self, width: int, rows: int, ms: float) -> None:
        """A pass in which each request fed ``width`` rows, ``rows`` in all, took ``ms``."""
        if width in self._seen:
            self._seen[width].append((rows, ms))

    def curve(self) -> CostCurve:
        """The quickest of each width, monotone. Where fewer than two widths were seen: what is usual on processors."""
        quickest = [min(seen, key=lambda pair: pair[1]) for seen in self._seen.values() if seen]
        found = dict(sorted(quickest))
        if len(found) < 2:
            return NOMINAL
        return CostCurve(tuple(found), tuple(np.maximum.accumulate(list(found.values())).tolist()))


class Pacing:
    """The controller for every size of batch (1, 2 to 3, 4 to 7, ... requests), and what it still has to learn.

    ``most``: the draft tokens a request may have. ``budget``: a fixed number of them instead. ``key`` names the engine
    and the machine whose measurements are kept for the next start; ``say`` gets one-line messages.
    """

    def __init__(self, most: int, budget: int | None, key: str, say: Callable[[str], None]) -> None:
        self._most = most
        self._fixed = None if budget is None else FixedController(budget)
        self._key = key
        self._say = say
        self._gauges: dict[int, Gauge] = {}
        self._controllers: dict[int, Controller] = {}

    def measuring(self, requests: int) -> Gauge | None:
        """The measurement that the next pass of so many ``requests`` should serve."""
        size = requests.bit_length()
        if self._fixed is not None or size in self._controllers:
            return None
        if size not in self._gauges:
            if (known := self._recalled(size)) is not None:
                self._begin(size, known)
                return None
            some = [width for width in widths(self._most) if width <= 2 or width * requests <= _WIDEST]
            self._gauges[size] = Gauge(some)
        gauge = self._gauges[size]
        if gauge.wanted is not None:
            return gauge
        self._finish(size, gauge.curve())
        return None

    def controller(self, requests: int) -> Controller:
        """Who decides for so many ``requests``, once there is nothing to measure."""
        return self._fixed or self._controllers[requests.bit_length()]

    def _finish(self, size: int, curve: CostCurve) -> None:
        self._begin(size, curve)
        priced = ", ".join(f"{rows}: {ms:.2f}" for rows, ms in zip(curve.rows, curve.ms, strict=True))
        self._say(f"passes of {1 << (size - 1)} or more requests, ms by rows: {priced}")
        if curve is not NOMINAL:
            try:
                remember(self._name(size), {"curve": curve.to_dict()})
            except SoonerError as error:
                self._say(f"measured anew at the next start: {error}")

    def _begin(self, size: int, curve: CostCurve) -> None:
        self._gauges.pop(size, None)
        self._controllers[size] = GoodputController(curve, overhead_ms=0.0, least_rows=1)

    def _recalled(self, size: int) -> CostCurve | None:
        try:
            return CostCurve.from_dict((recall(self._name(size)) or {})["curve"])
        except (KeyError, TypeError, ValueError, SoonerError):
            return None

    def _name(self, size: int) -> str:
        return f"vllm\n{self._key}\n{self._most}\n{size}"
