"""Prompt lookup: find the last few tokens earlier in the text and copy what followed them there.

Knows one sequence's tokens. Does not know other sequences or any model.
"""

from __future__ import annotations

import numpy as np

from sooner import tree
from sooner.draft.history import Histories, History, match_confidence
from sooner.draft.one_by_one import OneByOne
from sooner.draft.options import at_least
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["NgramDrafter"]


class NgramDrafter(OneByOne):
    """Copies after the longest earlier match of the last tokens; among equally long ones, after the latest.

    ``max``: most tokens drafted; ``max_match``, ``min_match``: longest and shortest match looked for. A copy that
    reaches the end of the text goes on in what it has drafted, so that periods are drafted in full. The search scans
    the sequence once (vectorised), so the only state is 4 to 8 bytes per token of each live sequence.
    Source: prompt lookup decoding (Saxena 2023); vLLM's ``ngram``.
    """

    name = "ngram"

    def __init__(self, *, max: int = 8, max_match: int = 8, min_match: int = 2) -> None:
        self._max = at_least(1, max=max)
        self._min_match = at_least(1, min_match=min_match)
        self._max_match = at_least(min_match, max_match=max_match)
        self._histories = Histories()

    def forget(self, id: int) -> None:
        """Drop the sequence's tokens."""
        self._histories.forget(id)

    def _propose(self, context: Context) -> Draft:
        budget = min(self._max, context.budget)
        if budget < 1:
            return EMPTY_DRAFT
        history = self._histories.read(context)
        end, length = self._match(history)
        if length < self._min_match:
            return EMPTY_DRAFT
        tokens = history.copy(end, budget)
        return tree.chain(tokens, [match_confidence(length + i) for i in range(budget)], self.name)

    def _match(self, history: History) -> tuple[int, int]:
        """Where the best earlier occurrence of the last tokens ends (exclusive), and its length."""
        tokens, n = history.tokens, len(history.tokens)
        ends = np.flatnonzero(tokens[: n - 1] == tokens[n - 1])
        length = 0
        while len(ends) and length < self._max_match:
            best, length = int(ends[-1]), length + 1
            ends = ends[ends >= length]
            ends = ends[tokens[ends - length] == tokens[n - 1 - length]]
        return (best + 1, length) if length else (0, 0)
