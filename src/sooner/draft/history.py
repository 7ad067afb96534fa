"""The tokens of live sequences as growing arrays. Knows lengths and copies. Does not know what the tokens mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sooner.protocols import Context

__all__ = ["Histories", "History", "match_confidence", "repeated"]


class History:
    """One sequence's tokens, ``[n]`` int32, doubling its room as it grows: at most 8 bytes per token."""

    def __init__(self) -> None:
        self._room = np.empty(256, dtype=np.int32)
        self._length = 0

    @property
    def tokens(self) -> NDArray[np.int32]:
        """All tokens so far, a view."""
        return self._room[: self._length]

    def read(self, context: Context) -> None:
        """Catch up with ``context.tokens``; starts over if that is not what was read before, grown."""
        tokens, known = context.tokens, self._length
        if known > len(tokens) or (known and tokens[known - 1] != self._room[known - 1]):
            known = 0
        self._length = len(tokens)
        if self._length > len(self._room):
            room = np.empty(2 * self._length, dtype=np.int32)
            room[:known] = self._room[:known]
            self._room = room
        if known < self._length:
            self._room[known : self._length] = tokens[known:]

    def copy(self, start: int, count: int) -> list[int]:
        """``count`` tokens from ``start``; past the end it goes on in what it has copied (a period repeats)."""
        return repeated(self._room[start : min(start + count, self._length)].tolist(), count)


class Histories:
    """The histories of all live sequences, by id."""

    def __init__(self) -> None:
        self._by_id: dict[int, History] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def read(self, context: Context) -> History:
        """The sequence's history, up to date."""
        history = self._by_id.get(context.id)
        if history is None:
            history = self._by_id[context.id] = History()
        history.read(context)
        return history

    def forget(self, id: int) -> None:
        """Drop a sequence; an unknown id is fine."""
        self._by_id.pop(id, None)


def repeated(copied: list[int], count: int) -> list[int]:
    """``copied`` made ``count`` tokens long by copying on from its own start: a period repeats."""
    period = len(copied)
    while len(copied) < count:
        copied.append(copied[len(copied) - period])
    return copied


def match_confidence(length: int) -> float:
    """The chance that the next copied token is right after ``length`` tokens have matched: m^2 / (m^2 + 4).

    Fitted to greedy answers of SmolLM2-135M to one Spec-Bench prompt of each category (measured 0.19, 0.53, 0.71 after
    1, 2, 3 tokens, 0.9 after 5 to 10, 0.98 after 20); the controller corrects it as it learns.
    """
    return length * length / (length * length + 4)
