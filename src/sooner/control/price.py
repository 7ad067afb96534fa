"""What the coming pass would cost: the measured curve, at the widths that are ready, kept true by every pass.

Knows widths and milliseconds. Does not know drafts' worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sooner.control.cost import CostCurve

__all__ = ["Price"]

_READY = 0.88
"""What a pass of a ready-made width takes of one on a graph of any width, until it has been seen."""

_FOLLOW = 0.04
"""How fast a width's factor follows what its passes take."""

_PLAUSIBLE = 1.7
"""No pass counts as more times longer or shorter than expected: it may have done something else besides."""

Series = NDArray[np.float64]


class Price:
    """Prices passes by rows, sequences and branches.

    ``widths``: the row counts for which the target has ready-made graphs at the moment (`Target.widths`): a pass is
    padded up to the next, and changing between them costs nothing. All other passes cost ``curve.change_ms`` more
    unless they have the rows of the last such pass. Times are refined by `observe`: machines are shared, and what was
    measured at load may have been measured under load; a factor for all passes and one for each width follow.
    """

    def __init__(self, curve: CostCurve, widths: Callable[[], Sequence[int]] = tuple) -> None:
        self.curve = curve
        self._widths = widths
        self._ready: tuple[int, ...] = ()
        self._scale = 1.0
        self._factor: dict[int, float] = {}
        self.width = 0.0
        """Rows of the last pass that was not ready-made."""

    @property
    def ready(self) -> tuple[int, ...]:
        """The ready-made widths."""
        return self._ready

    def refresh(self) -> None:
        """Look at what the target has ready now."""
        self._ready = tuple(self._widths())

    def pad(self, rows: Series) -> tuple[Series, NDArray[np.bool_]]:
        """What passes of ``rows`` rows are padded to, and which of them are ready-made."""
        if not self._ready:
            return rows, np.zeros(len(rows), np.bool_)
        ready = np.array(self._ready, np.float64)
        at = np.searchsorted(ready, rows)
        next_up = ready[np.minimum(at, len(ready) - 1)]
        fits = (at < len(ready)) & (next_up <= np.maximum(2.0 * rows, 4.0))
        return np.where(fits, next_up, rows), fits

    def steady(self, rows: Series, sequences: int, branches: Series, context: float = 0.0) -> Series:
        """Milliseconds of passes that change no width; ``rows`` as `pad` gives them, ``context`` in tokens a row."""
        ms: Series = self.curve(rows, sequences, branches, context) * self._scale
        for width in self._ready:
            ms = np.where(rows == width, ms * self._factor.get(width, _READY), ms)
        return ms

    def one(self, rows: int, sequences: int, context: float) -> float:
        """Milliseconds of a single such pass, padded."""
        padded, _ = self.pad(np.array([float(rows)]))
        return float(self.steady(padded, sequences, np.zeros(1), context)[0])

    def observe(self, rows: float, expected_ms: float, ms: float) -> None:
        """A pass of ``rows`` (padded) rows that was expected to take ``expected_ms`` took ``ms``."""
        if ms <= 0.0 or expected_ms <= 0.0:
            return
        ratio = min(max(ms / expected_ms, 1.0 / _PLAUSIBLE), _PLAUSIBLE) ** _FOLLOW
        self._scale *= ratio
        if rows in self._ready:
            self._factor[int(rows)] = self._factor.get(int(rows), _READY) * ratio
