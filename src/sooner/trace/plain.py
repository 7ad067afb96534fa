"""What a step without a draft takes, told from a trace: for the speed-up, and for playback beside plain decoding.

Knows steps' times and the machine's cost curve. Does not know tokens, or how much was drafted and why.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from sooner.control.cost import CostCurve
from sooner.types import ROOT

__all__ = ["PlainStep"]

_ENOUGH = 8
_KEPT = 4096
"""The latest steps are enough to tell, and a trace may have any number."""
_SHARED = 0.1


class PlainStep:
    """Looks at the decoding steps of one trace (`add`), then says what one without a draft takes (`estimate`)."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, Sequence[int], float, float]] = deque(maxlen=_KEPT)
        self._count = self._shared = 0

    def add(self, rows: int, pass_rows: int, parents: Sequence[int], score_ms: float, besides_ms: float) -> None:
        """A step after a text's first: its draft's ``parents``, its pass, and verification and overhead."""
        self._count += 1
        if pass_rows > rows:
            self._shared += 1
        else:
            self._steps.append((rows, parents, score_ms, besides_ms))

    def estimate(self, cost: object, context: float) -> tuple[float, str] | None:
        """Milliseconds and where they are from; None where passes were shared, so that no text had a time of its own,
        or nothing is known.

        "steps": the median of the steps without a draft, if there are eight. "curve": the ``cost`` of such a pass (a
        header's, after ``context`` tokens) by how this trace's own passes compare with theirs.
        """
        if not self._steps or self._shared > _SHARED * self._count:
            return None
        undrafted = [score + besides for _, parents, score, besides in self._steps if not parents]
        if len(undrafted) >= _ENOUGH:
            return statistics.median(undrafted), "steps"
        curve = _curve(cost)
        if curve is None:
            return None
        shapes = [_shape(max(rows, 2), parents, curve.refeed) for rows, parents, _, _ in self._steps]
        rows, branches = np.array([(2.0, 0.0), *shapes]).T
        plain, *foreseen = curve(rows, 1, branches, context)
        scale = statistics.median(step[2] / ms for step, ms in zip(self._steps, foreseen, strict=True))
        besides_ms = statistics.median(step[3] for step in self._steps)
        return float(plain * scale + besides_ms), "curve"


def _curve(cost: object) -> CostCurve | None:
    try:
        return CostCurve.from_dict(dict(cost)) if isinstance(cost, Mapping) else None
    except (KeyError, TypeError, ValueError):
        return None


def _shape(rows: int, parents: Sequence[int], refeed: float) -> tuple[float, float]:
    """Rows of a pass, those included that branches feed again, and its further branches."""
    levels: dict[int, int] = {ROOT: 0}
    continued: set[int] = set()
    again, branches = 0, 0
    for node, parent in enumerate(parents):
        levels[node] = levels[parent] + 1
        if parent in continued:
            again += levels[node]
            branches += 1
        continued.add(parent)
    return rows + refeed * again, float(branches)
