"""How much drafting may lose: a balance of milliseconds that wins fill, losses empty and time refills slowly.

Knows milliseconds. Does not know what is drafted or how worth is foreseen.
"""

from __future__ import annotations

__all__ = ["Allowance"]

_SHARE = 0.01
"""Of all time, what drafting may lose for good."""

_START, _MOST = 2.0, 5.0
"""Plain passes that may be lost before anything was won, and after any winning streak."""


class Allowance:
    """Bounds the cost of drafters that promise more than they hold, whatever they promise.

    What drafting cost (its own time, and what its rows made the pass longer) is set against what it saved: each extra
    token is worth what plain decoding would have taken for it. While the balance is spent nothing is drafted, but a
    hundredth of the time comes back as credit for a trial.
    """

    def __init__(self) -> None:
        self._plain_ms = 0.0
        self._balance = 0.0

    @property
    def open(self) -> bool:
        """Whether drafting is allowed."""
        return self._balance >= 0.0

    def passed(self, plain_ms: float) -> None:
        """A pass over; a plain one would have taken ``plain_ms``."""
        if not self._plain_ms:
            self._balance = _START * plain_ms
        self._plain_ms = plain_ms
        self._add(_SHARE * plain_ms)

    def drafted(self, own_ms: float, extra_ms: float) -> None:
        """Drafting took ``own_ms`` and made the pass ``extra_ms`` longer.

        More of the first than a plain pass takes is an accident: an index was built, or the machine was busy.
        """
        self._add(-min(own_ms, self._plain_ms) - extra_ms)

    def saved(self, tokens: int, sequences: int) -> None:
        """A text of ``sequences`` in the pass grew by ``tokens`` more than one."""
        self._add(tokens * self._plain_ms / sequences)

    def _add(self, ms: float) -> None:
        self._balance = min(self._balance + ms, _MOST * self._plain_ms)
