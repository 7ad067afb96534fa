"""How many tokens a pass is padded to: a pass of another width than the one before costs extra, and so does padding.

Knows widths and two costs. Does not know tokens; padding rows are never read, so a width cannot change a result.
"""

from __future__ import annotations

__all__ = ["LARGEST_PAD", "Width"]

LARGEST_PAD = 32
"""The most tokens of padding in one pass: they fit into one scratch block."""


class Width:
    """Chooses widths by renting until the rent equals the price.

    Whenever the width changes, OpenVINO infers the shapes of the whole graph anew: ``change_ms``, for a small model as
    much as half a pass. A token of padding costs ``row_ms``. So a narrower pass is padded to the last width until
    the padding since that width was last needed has cost as much as a change; total cost is then at most twice that
    of knowing the future.
    """

    def __init__(self, row_ms: float = 1.0, change_ms: float = 0.0) -> None:
        self.row_ms = row_ms
        self.change_ms = change_ms
        self.last = 0
        self._rent = 0.0

    def fit(self, tokens: int) -> int:
        """The width for a pass that needs ``tokens``; at least that, at most `LARGEST_PAD` more."""
        pad = self.last - tokens
        rent = self._rent + pad * self.row_ms
        if 0 < pad <= LARGEST_PAD and rent <= self.change_ms:
            self._rent = rent
            return self.last
        self.last = tokens
        self._rent = 0.0
        return tokens

    def forget(self) -> None:
        """The next pass gets exactly the width it needs."""
        self.last = 0
