"""Token recycling: the successors that the target's own rows named, accepted or not, after the last two tokens or one.

Knows past rows of this engine's requests. Does not know the text of any.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from sooner.draft.growth import grow
from sooner.draft.options import at_least
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Logits, Rows, Step

__all__ = ["RecycleDrafter"]

_MARGIN = 3.5
"""Successors this far below a row's best logit (natural log) are forgotten: their chance is under 3 %."""

Entry = tuple[tuple[int, float], ...]


class RecycleDrafter:
    """Every scored row says what the target finds likely after its token: reuse it the next time (2408.08696).

    Rows are kept under the last two tokens, and under the last one as a fallback. ``max``: most nodes drafted;
    ``depth``: deepest; ``width``: successors kept per row; ``size``: entries kept, the least recently used go first
    (about 0.8 kB each).
    """

    name = "recycle"

    def __init__(self, *, max: int = 8, depth: int = 6, width: int = 4, size: int = 20_000) -> None:
        self._max = at_least(1, max=max)
        self._depth = at_least(1, depth=depth)
        self._width = at_least(1, width=width)
        self._size = at_least(1, size=size)
        self._entries: OrderedDict[tuple[int, ...], Entry] = OrderedDict()
        self._tails: dict[int, tuple[int, ...]] = {}

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """A tree per context, empty where nothing is known of its last tokens."""
        return [self._propose(context) for context in contexts]

    def observe(self, step: Step, rows: Rows) -> None:
        """Keep the best successors of every scored row whose context is known."""
        tail = self._tails.get(step.sequence)
        if tail is None:
            return
        self._tails[step.sequence] = (*tail, *step.tokens)[-2:]
        draft = step.draft
        for node in (ROOT, *range(len(draft))):
            path = (*tail, *(draft.tokens[i] for i in draft.path(node)))
            entry = best_successors(rows.logits[node + 1], self._width)
            self._keep(path[-2:], entry)
            self._keep(path[-1:], entry)

    def forget(self, id: int) -> None:
        """The sequence ended; what its rows taught stays."""
        self._tails.pop(id, None)

    def _propose(self, context: Context) -> Draft:
        self._tails[context.id] = tuple(context.tokens[-2:])
        budget = min(self._max, context.budget)
        if budget < 1:
            return EMPTY_DRAFT
        return grow(context, self._successors, 2, budget=budget, depth=self._depth, source=self.name)

    def _successors(self, path: Sequence[int]) -> Entry:
        return self._entries.get(tuple(path[-2:])) or self._entries.get(tuple(path[-1:])) or ()

    def _keep(self, key: tuple[int, ...], entry: Entry) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)


def best_successors(row: Logits, width: int) -> Entry:
    """The likeliest ids of a raw row with their probabilities among those within `_MARGIN` of the best."""
    near = np.flatnonzero(row >= row.max() - _MARGIN)
    values = row[near]
    order = np.argsort(-values, kind="stable")[:width]
    weights = np.exp(values - values.max())
    total = float(weights.sum())
    return tuple((int(near[i]), float(weights[i]) / total) for i in order)
