"""Which blocks of the KV cache are free, held, or kept for their prefix: counting, sharing, evicting.

Knows block numbers and the tokens of full, settled blocks. Does not know what a block contains or who holds it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from sooner.errors import TargetError

__all__ = ["BlockPool", "Parent"]

Parent = int | str
"""What comes before a block: the serial of the block before it, or, for a first block, the salt."""

_Key = tuple[Parent, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Entry:
    key: _Key
    serial: int


class BlockPool:
    """``size`` blocks with reference counts and an exact prefix cache.

    A full block is filed under (serial of the block before it, its tokens). Serials are never used twice, so a hit
    is equality of all tokens up to there: nothing is hashed down. Blocks that nobody holds but that are filed stay
    idle, at most ``keep`` of them, and are evicted least recently used first. Free blocks are reused last in first
    out, so that memory once touched is touched again.
    """

    def __init__(self, size: int, keep: int) -> None:
        self.size = size
        self._keep = keep
        self._free = list(range(size - 1, -1, -1))
        self._references = [0] * size
        self._entries: dict[int, _Entry] = {}
        self._index: dict[_Key, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._serial = 0

    @property
    def available(self) -> int:
        """Blocks that `take` can give: free ones, and idle ones after eviction."""
        return len(self._free) + len(self._idle)

    @property
    def idle(self) -> int:
        """Blocks that nobody holds, kept for their prefix."""
        return len(self._idle)

    @property
    def held(self) -> int:
        """Blocks that someone holds."""
        return self.size - self.available

    def take(self) -> int:
        """A block for one holder; its contents are undefined. Raises `TargetError` if none is available."""
        if not self._free:
            if not self._idle:
                raise TargetError(f"the KV pool of {self.size} blocks is full: close sessions or raise pool_tokens")
            self._evict()
        block = self._free.pop()
        self._references[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One more holder of a held or idle block."""
        self._idle.pop(block, None)
        self._references[block] += 1

    def drop(self, blocks: Sequence[int]) -> None:
        """One holder less for each of ``blocks``, in the order of their tokens.

        They are dropped from the end: a block then turns idle before the one it follows and is evicted before it.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._entries:
                self._idle[block] = None
            else:
                self._free.append(block)
        while len(self._idle) > self._keep:
            self._evict()

    def shared(self, block: int) -> bool:
        """Whether more than one holder counts on ``block``."""
        return self._references[block] > 1

    def filed(self, block: int) -> bool:
        """Whether ``block`` can be found by its prefix."""
        return block in self._entries

    def file(self, block: int, parent: Parent, tokens: tuple[int, ...]) -> tuple[int, int]:
        """Make a full block findable; returns (block, serial).

        If an equal block is filed already, the holder of ``block`` gets that one in its place.
        """
        key = (parent, tokens)
        known = self._index.get(key)
        if known is None:
            self._serial += 1
            self._entries[block] = _Entry(key, self._serial)
            self._index[key] = block
            return block, self._serial
        if known != block:
            self.hold(known)
            self.drop((block,))
        return known, self._entries[known].serial

    def find(self, parent: Parent, tokens: tuple[int, ...]) -> tuple[int, int] | None:
        """The (block, serial) filed under ``parent`` and ``tokens``, if any. Does not hold it."""
        block = self._index.get((parent, tokens))
        return None if block is None else (block, self._entries[block].serial)

    def purge(self) -> None:
        """Empty the prefix cache: idle blocks are free again."""
        while self._idle:
            self._evict()

    def _evict(self) -> None:
        block, _ = self._idle.popitem(last=False)
        del self._index[self._entries.pop(block).key]
        self._free.append(block)
