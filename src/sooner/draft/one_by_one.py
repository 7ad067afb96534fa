"""What most drafters have in common: they guess for one sequence at a time.

Knows the shape of a drafter. Does not know any drafter, and the engine does not ask for this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from sooner.protocols import Context
from sooner.types import Draft, Rows, Step

__all__ = ["OneByOne"]


class OneByOne:
    """A `sooner.protocols.Drafter` that, unless it says otherwise, learns nothing from a step (the emitted tokens stand
    in the next context) and keeps nothing for a sequence."""

    name: str

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """One draft per context, each for itself."""
        return [self._propose(context) for context in contexts]

    def observe(self, step: Step, rows: Rows) -> None:
        """Nothing to learn."""

    def forget(self, id: int) -> None:
        """Nothing is kept."""

    def _propose(self, context: Context) -> Draft:
        """A draft of at most ``context.budget`` nodes, empty where there is nothing to guess from."""
        raise NotImplementedError
