"""What vLLM's passes cost with so many requests side by side, measured in passing: now and then they draft set widths.

Knows widths and milliseconds. Does not know drafts, texts or vLLM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from sooner.control.cost import NOMINAL, CostCurve
from sooner.control.fixed import FixedController
from sooner.control.goodput import GoodputController
from sooner.control.price import Price
from sooner.protocols import Controller

__all__ = ["Gauge", "Pacing", "widths"]

_ROUNDS, _KEPT = 3, 6
"""Rounds of measurement at first, and how many count: of the last ones, the quickest of each width."""

_AGAIN = 400
"""Passes after which there is another round: what was measured first may have been measured under another load."""

_PATIENCE = 3
"""Tries per measurement that may fail (a prompt was read in the same pass) before what there is has to do."""

_WIDEST = 256
"""Rows of a pass beyond which nothing is measured: by then a further one costs what the last did."""


def widths(most: int) -> tuple[int, ...]:
    """Rows of a request in the passes to measure, where at most ``most`` tokens are drafted: powers of two, and all."""
    return (*(1 << i for i in range(5) if 1 << i <= 0.7 * (most + 1)), most + 1)


class Gauge:
    """Measurements of one size of batch: ``widths`` in turns."""

    def __init__(self, widths: Sequence[int]) -> None:
        self._widths = tuple(widths)
        self._seen: dict[int, deque[tuple[int, float]]] = {width: deque(maxlen=_KEPT) for width in self._widths}
        self._passes = self._tries = 0
        self._told = True
        self._left: deque[int] = deque()
        self._begin(_ROUNDS)

    @property
    def wanted(self) -> int | None:
        """Rows that each request of the next pass should feed; None while there is nothing to measure."""
        return self._left[0] if self._left else None

    def tried(self) -> None:
        """A pass of the wanted width is asked for."""
        self._tries -= 1

    def took(self, width: int, rows: int, ms: float) -> None:
        """A pass in which each request fed ``width`` rows, ``rows`` in all, took ``ms``."""
        self._seen[width].append((rows, ms))
        if self.wanted == width:
            self._left.popleft()

    def news(self) -> CostCurve | None:
        """After each round, once: the quickest of each width, monotone. Where fewer than two widths could be seen, what
        is usual on processors."""
        if self._told or (self._left and self._tries > 0):
            return None
        self._left.clear()
        self._told = True
        found = dict(sorted(min(seen, key=lambda pair: pair[1]) for seen in self._seen.values() if seen))
        if len(found) < 2:
            return NOMINAL
        return CostCurve(tuple(found), tuple(np.maximum.accumulate(list(found.values())).tolist()))

    def passed(self) -> None:
        """Another pass, not measured."""
        self._passes += 1
        if self._passes % _AGAIN == 0:
            self._begin(1)

    def _begin(self, rounds: int) -> None:
        self._left = deque(self._widths * rounds)
        self._tries = _PATIENCE * len(self._left)
        self._told = False


class Pacing:
    """The controller for every size of batch (1, 2 to 3, 4 to 7, ... requests), and what it has to learn.

    ``most``: the draft tokens a request may have. ``budget``: a fixed number of them instead. ``say`` gets one-line
    messages.
    """

    def __init__(self, most: int, budget: int | None, say: Callable[[str], None]) -> None:
        self._most = most
        self._fixed = None if budget is None else FixedController(budget)
        self._say = say
        self._gauges: dict[int, Gauge] = {}
        self._controllers: dict[int, GoodputController] = {}

    def measuring(self, requests: int) -> Gauge | None:
        """The measurement that the next pass, of so many ``requests``, should serve; None if it need not."""
        if self._fixed is not None:
            return None
        size = requests.bit_length()
        if size not in self._gauges:
            some = [width for width in widths(self._most) if width <= 2 or width * requests <= _WIDEST]
            self._gauges[size] = Gauge(some)
        gauge = self._gauges[size]
        if (curve := gauge.news()) is not None:
            self._learn(size, curve)
        if gauge.wanted is not None:
            return gauge
        gauge.passed()
        return None

    def controller(self, requests: int) -> Controller:
        """Who decides for so many ``requests``, where there is nothing to measure."""
        return self._fixed or self._controllers[requests.bit_length()]

    def _learn(self, size: int, curve: CostCurve) -> None:
        if size in self._controllers:
            self._controllers[size].price = Price(curve)
        else:
            self._controllers[size] = GoodputController(curve, overhead_ms=0.0, least_rows=1)
        priced = ", ".join(f"{rows}: {ms:.2f}" for rows, ms in zip(curve.rows, curve.ms, strict=True))
        self._say(f"passes of {1 << (size - 1)} or more requests, ms by rows: {priced}")
