"""A constant draft budget, for benchmarks, tests and users who know what they want. Knows nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, Draft, Step

__all__ = ["FixedController"]


class FixedController:
    """Asks every sequence's drafter for ``budget`` nodes at every step and scores all it gets; 0 is plain decoding."""

    def __init__(self, budget: int) -> None:
        if budget < 0:
            raise ValueError(f"budget must be at least 0, not {budget}")
        self.budget = budget

    def budgets(self, contexts: Sequence[Context]) -> list[int]:
        """The constant, for each."""
        return [self.budget] * len(contexts)

    def select(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Draft]:
        """Everything proposed; nothing if the constant is 0."""
        return list(drafts) if self.budget else [EMPTY_DRAFT] * len(drafts)

    def observe(self, step: Step) -> None:
        """Learns nothing."""
