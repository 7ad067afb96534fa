"""Predicted outputs: the caller supplies the text expected, and the drafter keeps its place in it.

Knows the expected tokens and the output so far. Does not know where the expectation came from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sooner import tree
from sooner.draft.one_by_one import OneByOne
from sooner.draft.options import at_least
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["GivenDrafter"]

_SURE, _GUESSED = 0.9, 0.4
"""Confidence while the output follows the expected text, and after an unexplained mismatch."""


class GivenDrafter(OneByOne):
    """Copies on from its place in ``context.expected``; drafts nothing for requests without one.

    A mismatch is first taken for a replaced token. From the next proposal on the place is looked up anew by the last
    output tokens: the longest run of at least ``min_match`` (at most ``max_match``) that occurs at or after the last
    place that was certain, the nearest of equals; only if there is none, the same before it, the latest of equals.
    ``max``: most tokens drafted. (OpenAI's predicted outputs.)
    """

    name = "given"

    def __init__(self, *, max: int = 16, max_match: int = 8, min_match: int = 2) -> None:
        self._max = at_least(1, max=max)
        self._min_match = at_least(1, min_match=min_match)
        self._max_match = at_least(min_match, max_match=max_match)
        self._places: dict[int, _Place] = {}

    def forget(self, id: int) -> None:
        """Drop the sequence's place."""
        self._places.pop(id, None)

    def _propose(self, context: Context) -> Draft:
        budget = min(self._max, context.budget)
        if budget < 1 or not context.expected:
            return EMPTY_DRAFT
        emitted = len(context.tokens) - context.prompt_length
        place = self._places.get(context.id)
        if place is None or place.seen > emitted:
            place = self._places[context.id] = _Place(context.expected)
        place.follow(context.tokens[context.prompt_length + place.seen :])
        if not place.sure:
            start = max(context.prompt_length, len(context.tokens) - self._max_match)
            place.seek(context.tokens[start:], self._min_match)
        tokens: list[int] = place.expected[place.cursor : place.cursor + budget].tolist()
        return tree.chain(tokens, _SURE if place.sure else _GUESSED, self.name)


class _Place:
    """Where in the expected text one output is. ``cursor``: the next expected token; ``seen``: output tokens read."""

    def __init__(self, expected: Sequence[int]) -> None:
        self.expected: NDArray[np.int64] = np.array(expected, dtype=np.int64)
        self.cursor = 0
        self.seen = 0
        self.sure = True
        self._certain = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """Read new output; a mismatch makes the place unsure and counts as one token replaced."""
        for token in tokens:
            inside = self.cursor < len(self.expected)
            if self.sure and not (inside and self.expected[self.cursor] == token):
                self.sure, self._certain = False, self.cursor
            self.cursor += 1
        self.seen += len(tokens)

    def seek(self, tail: Sequence[int], least: int) -> None:
        """Find the place by the last output tokens; leaves it unsure where they do not occur."""
        for ends in (np.arange(self._certain + 1, len(self.expected) + 1), np.arange(self._certain, 0, -1)):
            place = self._nearest(ends, tail, least)
            if place is not None:
                self.cursor, self.sure = place, True
                return

    def _nearest(self, ends: NDArray[np.int64], tail: Sequence[int], least: int) -> int | None:
        """The first of ``ends`` (exclusive) with the longest match of ``tail`` before it, if of ``least`` tokens."""
        place = None
        for length in range(1, len(tail) + 1):
            ends = ends[ends >= length]
            ends = ends[self.expected[ends - length] == tail[-length]]
            if not len(ends):
                break
            place = int(ends[0]) if length >= least else None
        return place
