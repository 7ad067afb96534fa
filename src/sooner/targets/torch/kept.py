"""Encodings that texts share: each is made once as long as anybody holds it, and a few stay when nobody does.

Knows keys, ids and counts. Does not know pictures, sounds or what encodes them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

__all__ = ["Kept", "Numbered"]


class Numbered(Protocol):
    """An encoding whose tokens have ids of their own."""

    @property
    def ids(self) -> int:
        """How many."""
        ...


T = TypeVar("T", bound=Numbered)


class Kept(Generic[T]):
    """Encodings by their keys. ``next``: the first id that no other has (at first behind the vocabulary); none is given
    twice. ``most``: how many stay that nobody else holds, those that were asked for last.

    Safe in any thread. ``turn`` is held while one is made: take it before, too, for what one at a time may do alone.
    """

    def __init__(self, next: int, most: int = 8) -> None:
        self.next = next
        self.turn = threading.RLock()
        self._most = most
        self._alive: WeakValueDictionary[bytes, T] = WeakValueDictionary()
        self._recent: OrderedDict[bytes, T] = OrderedDict()

    def __len__(self) -> int:
        """How many there are, whoever holds them."""
        return len(self._alive)

    def get(self, key: bytes, make: Callable[[], T]) -> T:
        """The encoding of ``key``; where there is none, what ``make()`` gives, whose ids begin with ``next``. What it
        raises goes through, and nothing is kept."""
        with self.turn:
            found = self._alive.get(key)
            if found is None:
                found = self._alive[key] = make()
                self.next += found.ids
            self._recent[key] = found
            self._recent.move_to_end(key)
            while len(self._recent) > self._most:
                self._recent.popitem(last=False)
            return found
