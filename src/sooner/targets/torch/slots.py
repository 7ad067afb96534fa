"""Who has which place in the cache: live sessions, and places whose last text is kept for its prefix.

Knows indices and tokens. Does not know tensors, models or passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Place", "Slots", "common"]


@dataclass(slots=True)
class Place:
    """One sequence's place: ``tokens`` are those whose entries it holds, under ``salt``."""

    index: int
    tokens: list[int] = field(default_factory=list)
    salt: str = ""


class Slots:
    """``count`` places. A place given back keeps its text until another session needs the room, the oldest first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = [Place(index) for index in range(count)]
        self._live: dict[int, Place] = {}

    @property
    def free(self) -> int:
        """Places that nobody holds."""
        return len(self._free)

    def find(self, tokens: Sequence[int], salt: str) -> tuple[Place | None, int]:
        """The place, live or kept, that holds the most of ``tokens`` under ``salt``, and how many."""
        best: Place | None = None
        longest = 0
        for place in (*self._free, *self._live.values()):
            same = common(place.tokens, tokens) if place.salt == salt else 0
            if same > longest:
                best, longest = place, same
        return best, longest

    def claim(self, place: Place, held: int) -> bool:
        """Take a free ``place`` over for a text that goes on after ``held`` of its tokens, if that loses nothing that
        another place could spare. False where a copy is better, or the place is live."""
        if place.index in self._live or (held < len(place.tokens) and self.free > 1):
            return False
        self._free.remove(place)
        self._live[place.index] = place
        return True

    def take(self, keep: Place | None = None) -> Place | None:
        """An empty place: one without a text, else the oldest but ``keep``; None if there is none."""
        spare = [place for place in self._free if place is not keep]
        if not spare:
            return None
        place = min((p for p in spare if not p.tokens), key=lambda p: p.index, default=spare[0])
        self._free.remove(place)
        self._live[place.index] = place
        place.tokens = []
        return place

    def give_back(self, place: Place) -> None:
        """Free a place; its text stays findable."""
        del self._live[place.index]
        self._free.append(place)

    def purge(self) -> None:
        """Forget the texts of free places."""
        for place in self._free:
            place.tokens = []

    @property
    def live(self) -> Iterable[Place]:
        """The places in use."""
        return self._live.values()


def common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The length of the common prefix. The usual case, that one goes on from the other, is a single comparison."""
    n = min(len(ours), len(theirs))
    if list(ours[:n]) == list(theirs[:n]):
        return n
    return next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
