"""The running requests of a vLLM batch, recognised by their text: the hook says a row's tokens, not whose they are.

Knows rows of tokens and how they grow. Does not know drafts' worth, or vLLM.

Two requests with the same text are interchangeable: what is drafted for one is a draft for the other.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["Row", "Text", "Texts"]

_FULL = 0.875
"""Of the bound, what new texts may fill: one that had to be let go as soon as others grew would be read for nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request's place in the batch. ``tokens``: prompt and output, ``[n]`` int32, those of the pass just over
    included. ``sampled``: those last; none where only a part of the prompt was read."""

    sampled: Sequence[int]
    tokens: NDArray[np.int32]


@dataclass(eq=False, slots=True)
class Text:
    """A request that decodes. ``tokens`` grow in place; ``draft``: what was proposed after them.

    ``emitted``: the tokens of the pass just over. ``followed``: whether that was the pass of ``draft``, so that the two
    can be compared; false for a request's first pass.
    """

    id: int
    tokens: array[int]
    prompt_length: int
    draft: Draft = EMPTY_DRAFT
    emitted: tuple[int, ...] = ()
    followed: bool = False
    passes: int = field(default=0)

    def continued_by(self, row: Row) -> bool:
        """Whether ``row`` holds this text and at least one token more."""
        n = len(self.tokens)
        return n < len(row.tokens) and bool(np.array_equal(np.frombuffer(self.tokens, np.int32), row.tokens[:n]))

    def grow(self, row: Row) -> None:
        """Take over what ``row`` has more."""
        n = len(self.tokens)
        self.followed = n == len(row.tokens) - len(row.sampled)
        self.emitted = tuple(row.sampled)
        self.passes += 1
        self.tokens.frombytes(row.tokens[n:].astype(np.int32).tobytes())


class Texts:
    """Follows the requests of a batch from pass to pass; those that are no longer in it are forgotten.

    ``most``: tokens of all texts together; beyond it the youngest are left alone until others have gone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: list[Text | None] = []
        self._ids = itertools.count()

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(text.tokens) for text in self._places if text is not None)

    def meet(self, rows: Sequence[Row]) -> tuple[list[Text | None], list[Text]]:
        """The text of each row after a pass (None where there is nothing to continue or no room), and the texts that
        are gone."""
        left = {text.id: text for text in self._places if text is not None}
        found: list[Text | None] = [None] * len(rows)
        for i, (row, text) in enumerate(zip(rows, self._places, strict=False)):
            if text is not None and row.sampled and text.continued_by(row):
                found[i] = left.pop(text.id)
        for i, row in enumerate(rows):  # a batch closes its gaps: the others may stand elsewhere
            if found[i] is None and row.sampled:
                moved = next((text for text in left.values() if _long(text, row) and text.continued_by(row)), None)
                found[i] = None if moved is None else left.pop(moved.id)
        for text, row in zip(found, rows, strict=True):
            if text is not None:
                text.grow(row)
        self._places = found
        gone = [*left.values(), *self._let_go()]
        self._admit(rows)
        return list(self._places), gone

    def _let_go(self) -> list[Text]:
        """The youngest texts, as far as all have grown beyond the bound."""
        gone = []
        for text in sorted((text for text in self._places if text is not None), key=lambda text: -text.id):
            if self.tokens > self._most:
                self._places[self._places.index(text)] = None
                gone.append(text)
        return gone

    def _admit(self, rows: Sequence[Row]) -> None:
        """Begin to follow rows that decode, as far as there is room, and room to grow."""
        room = _FULL * self._most - self.tokens
        for i, row in enumerate(rows):
            if self._places[i] is None and row.sampled and len(row.tokens) <= room:
                room -= len(row.tokens)
                tokens = array("i", row.tokens.astype(np.int32).tobytes())
                self._places[i] = Text(next(self._ids), tokens, len(row.tokens) - len(row.sampled))


def _long(text: Text, row: Row) -> bool:
    return len(text.tokens) == len(row.tokens) - len(row.sampled)
