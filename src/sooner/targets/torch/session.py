"""One sequence's place in the cache: its tokens, its slot, and the draft of its last pass.

Knows slots and tokens. Does not know the model, the pass, or what entries contain (`Room` moves them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sooner.errors import TargetError
from sooner.targets.torch.slots import Place, Slots, common
from sooner.tree import paths
from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["Room", "TorchSession"]

Keep = Callable[[Sequence[int]], None]
"""Brings the entries of a path of draft nodes to their places behind the tokens."""


@dataclass(slots=True)
class Room:
    """What the sessions of one target share: the slots, and the copy of one slot's first entries to another."""

    slots: Slots
    copy: Callable[[int, int, int], None]


class TorchSession:
    """Holds ``tokens`` in a slot, position by position. It takes one when it first has something to hold.

    A pass writes only behind ``tokens``, so these always describe the settled entries.
    """

    def __init__(self, room: Room, tokens: Sequence[int] = (), salt: str = "") -> None:
        self._room = room
        self._salt = salt
        self._place: Place | None = None
        self._tokens: list[int] = []
        self._draft = EMPTY_DRAFT
        self._keep: Keep | None = None
        self._closed = False
        if tokens:
            self._attach(list(tokens))

    @property
    def tokens(self) -> Sequence[int]:
        """The settled tokens; read-only, it grows and shrinks in place."""
        return self._tokens

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def placed(self) -> bool:
        """Whether it has a slot."""
        return self._place is not None

    def belongs_to(self, room: Room) -> bool:
        """Whether the session was opened over ``room``."""
        return self._room is room

    def slot(self) -> int:
        """The slot's index, taken now if there was none. Raises `TargetError` if all are in use."""
        if self._place is None:
            self._place = self._room.slots.take()
            if self._place is None:
                raise TargetError("the KV cache has no free slot for this pass: ask fits() first")
            self._own(self._place)
        return self._place.index

    def scored(self, tokens: Sequence[int], draft: Draft, keep: Keep) -> None:
        """A pass fed ``tokens`` and ``draft``; ``keep`` is how a path of its nodes would be kept."""
        self._tokens += tokens
        self._draft, self._keep = draft, keep

    def drop_pending(self) -> None:
        """Forget the draft of the last pass."""
        self._draft, self._keep = EMPTY_DRAFT, None

    def settle(self, path: Sequence[int]) -> None:
        """Keep the draft nodes ``path`` of the last pass. Raises `TargetError` if it is no path of that draft."""
        path = tuple(path)
        if path:
            if not any(known[: len(path)] == path for known in paths(self._draft)):
                raise TargetError(f"{path} is no path of the draft scored last: settle once, after the pass")
            assert self._keep is not None
            self._keep(path)
            self._tokens += [self._draft.tokens[node] for node in path]
        self.drop_pending()

    def sync(self, tokens: Sequence[int]) -> int:
        """Keep the common prefix with ``tokens``, cut the rest; returns its length."""
        self.drop_pending()
        n = common(self._tokens, tokens)
        del self._tokens[n:]
        return n

    def close(self) -> None:
        """Give the slot back; its text stays findable until the slot is needed."""
        if not self._closed:
            self._closed = True
            self.drop_pending()
            if self._place is not None:
                self._place.tokens = list(self._tokens)
                self._room.slots.give_back(self._place)
                self._place = None
            self._tokens = []

    def _attach(self, tokens: list[int]) -> None:
        slots = self._room.slots
        found, n = slots.find(tokens, self._salt)
        if found is None:
            return
        if slots.claim(found, n):
            self._own(found)
        elif (place := slots.take(keep=found)) is not None:
            self._room.copy(found.index, place.index, n)
            self._own(place)
        else:
            return
        self._tokens += tokens[:n]

    def _own(self, place: Place) -> None:
        self._place = place
        place.tokens = self._tokens
        place.salt = self._salt
