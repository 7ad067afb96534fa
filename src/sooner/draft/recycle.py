"""Token recycling: the successors that the target's own rows named, accepted or not, after the last two tokens or one.

Knows past rows of this engine's requests, apart by salt. Does not know the text of any.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import numpy as np

from sooner.draft.growth import grow
from sooner.draft.one_by_one import OneByOne
from sooner.draft.options import at_least
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Logits, Rows, Step

__all__ = ["RecycleDrafter"]

_MARGIN = 3.5
"""Successors this far below a row's best logit (natural log) are forgotten: their chance is under 3 %."""

Entry = tuple[tuple[int, float], ...]

_Key = tuple[str | int, ...]
"""A salt and one or two tokens."""


class RecycleDrafter(OneByOne):
    """Every scored row says what the target finds likely after its token: reuse it the next time (2408.08696).

    Rows are kept under the last two tokens, and under the last one as a fallback, for sequences of equal salt only.
    ``max``: most nodes drafted; ``depth``: deepest; ``width``: successors kept per row; ``size``: entries kept of all
    salts together, the least recently learned go first (about 0.8 kB each).
    """

    name = "recycle"

    def __init__(self, *, max: int = 8, depth: int = 6, width: int = 4, size: int = 20_000) -> None:
        self._max = at_least(1, max=max)
        self._depth = at_least(1, depth=depth)
        self._width = at_least(1, width=width)
        self._size = at_least(1, size=size)
        self._entries: OrderedDict[_Key, Entry] = OrderedDict()
        self._tails: dict[int, tuple[str, tuple[int, ...]]] = {}

    def observe(self, step: Step, rows: Rows) -> None:
        """Keep the best successors along the kept path: reading a row costs more than a rejected one brings."""
        known = self._tails.get(step.sequence)
        if known is None:
            return
        salt, tail = known
        self._tails[step.sequence] = salt, (*tail, *step.tokens)[-2:]
        draft = step.draft
        for node in (ROOT, *step.path):
            path = (*tail, *(draft.tokens[i] for i in draft.path(node)))
            entry = best_successors(rows.logits[node + 1], self._width)
            self._keep((salt, *path[-2:]), entry)
            self._keep((salt, *path[-1:]), entry)

    def forget(self, id: int) -> None:
        """The sequence ended; what its rows taught stays."""
        self._tails.pop(id, None)

    def _propose(self, context: Context) -> Draft:
        self._tails[context.id] = context.salt, tuple(context.tokens[-2:])
        budget = min(self._max, context.budget)
        if budget < 1:
            return EMPTY_DRAFT
        successors = partial(self._successors, context.salt)
        return grow(context, successors, 2, budget=budget, depth=self._depth, source=self.name)

    def _successors(self, salt: str, path: Sequence[int]) -> Entry:
        return self._entries.get((salt, *path[-2:])) or self._entries.get((salt, *path[-1:])) or ()

    def _keep(self, key: _Key, entry: Entry) -> None:
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
