"""Whose turn it is on an engine that several threads drive: passes, and those who submit or abort between them.

Knows threads. Does not know what a pass does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Turns"]

_COURTESY = 50
"""Tenths of a millisecond that a driving thread leaves the lock to others between passes, when others want it."""


class Turns:
    """A reentrant lock whose drivers give way: a lock alone would mostly come back to the thread that released it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._guests: set[object] = set()

    @contextmanager
    def driving(self) -> Iterator[None]:
        """The turn of a thread that takes passes."""
        with self._lock:
            yield

    @contextmanager
    def between_passes(self) -> Iterator[None]:
        """The turn of a thread that submits or aborts: it comes before the next pass of whoever drives."""
        guest = object()
        self._guests.add(guest)
        try:
            with self._lock:
                self._guests.discard(guest)
                yield
        finally:
            self._guests.discard(guest)

    def give_way(self) -> None:
        """Called by a driver between passes, without the lock."""
        for _ in range(_COURTESY):
            if not self._guests:
                return
            time.sleep(1e-4)
