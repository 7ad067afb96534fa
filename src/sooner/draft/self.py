"""The target as its own draft: everything is accepted, so what is not accepted is a fault in the loop.

Knows the target and the request's sampling. Does not know the engine's sessions; `levels` opens its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sooner.draft.levels import Job, Levels, Processors
from sooner.draft.options import at_least
from sooner.draft.vocabulary import Same
from sooner.protocols import Context, Target
from sooner.types import Draft, Rows, Step

__all__ = ["SelfDrafter"]


class SelfDrafter:
    """Drafts up to ``max`` tokens with ``target``, one pass each: the acceptance is 1 under every rule.

    The same road as a draft model's, with the target in its place. ``eos_ids``: the ids that ``min_tokens`` bans.
    Its cache holds each live sequence a second time and is cut back by ``sync``; where the target has no room left
    for that, it drafts nothing.
    """

    name = "self"

    def __init__(self, target: Target, *, max: int = 4, eos_ids: Sequence[int] = ()) -> None:
        self._max = at_least(1, max=max)
        self._levels = Levels(target, self.name)
        self._processors = Processors(target.vocab_size, eos_ids)
        self._tongue = Same(target.vocab_size, target.vocab_size)

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """A chain per context, drafted side by side."""
        known = [[*c.sounds, *c.tokens] if c.sounds else c.tokens for c in contexts]
        read = self._processors.read
        jobs = [Job(c, k, self._tongue, read(c), self._max) for c, k in zip(contexts, known, strict=True)]
        return [replace(draft, confidence=(1.0,) * len(draft)) for draft in self._levels.propose(jobs)]

    def observe(self, step: Step, rows: Rows) -> None:
        """Nothing to learn: the session is cut back to the kept tokens at the next proposal."""

    def forget(self, id: int) -> None:
        """Close the sequence's session."""
        self._levels.forget(id)
        self._processors.forget(id)
