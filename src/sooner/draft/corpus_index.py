"""A suffix array over token ids: built once, kept in two files, read through the page cache.

Knows tokens and their order. Does not know texts, or what a match is used for.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import unpack

import numpy as np
from numpy.typing import NDArray

__all__ = ["CorpusIndex"]

_TOKENS, _ORDER = "tokens", "order.npy"


class CorpusIndex:
    """Where token sequences occur in many texts. A match may run across texts only where ``seam`` lies between.

    ``tokens``: ``[n]`` in 2 or 4 bytes, big-endian, so that comparing bytes compares tokens; ``order``: ``[n]`` int32,
    all positions sorted by what follows them (Manber and Myers 1993).
    """

    def __init__(self, tokens: mmap.mmap | bytes, width: int, order: NDArray[np.int32]) -> None:
        self._tokens = tokens
        self._width = width
        self._order = order.data
        self._dtype = np.dtype(f">u{width}")
        self.seam = (1 << 8 * width) - 1

    def __len__(self) -> int:
        """Tokens, seams included."""
        return len(self._order)

    @classmethod
    def build(cls, texts: Iterable[Sequence[int] | NDArray[np.int32]], vocab_size: int) -> CorpusIndex:
        """Sort all suffixes of ``texts`` (seconds for ten megabytes of text)."""
        from pydivsufsort import divsufsort

        width = 2 if vocab_size < 1 << 16 else 4
        seam = np.array([(1 << 8 * width) - 1])
        parts = [part for text in texts for part in (np.asarray(text, dtype=np.int64), seam)]
        joined = np.concatenate([seam, *parts]).astype(f">u{width}")
        # Of all suffixes of bytes, those at multiples of the width are the suffixes of tokens, in the same order.
        order = divsufsort(joined.view(np.uint8))
        order = (order[order % width == 0] // width).astype(np.int32)
        return cls(joined.tobytes(), width, order)

    def save(self, folder: Path) -> None:
        """Write both files into ``folder``."""
        (folder / f"{_TOKENS}{self._width}").write_bytes(self._tokens)
        np.save(folder / _ORDER, np.asarray(self._order), allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> CorpusIndex:
        """Map what `save` wrote. Raises `OSError` or `ValueError` where it is not whole."""
        (file,) = folder.glob(f"{_TOKENS}?")
        width = int(file.name[-1])
        with file.open("rb") as data:
            tokens = mmap.mmap(data.fileno(), 0, access=mmap.ACCESS_READ)
        order: NDArray[np.int32] = np.load(folder / _ORDER, mmap_mode="r", allow_pickle=False)
        if order.dtype != np.int32 or len(order) * width != len(tokens):
            raise ValueError("the two files do not belong together")
        return cls(tokens, width, order)

    def longest(self, tail: Sequence[int], least: int) -> tuple[int, int, int]:
        """(m, first, last): the longest m last tokens of ``tail`` that occur, at least ``least``, and the slice of the
        order that holds their occurrences; (0, 0, 0) if there is none."""
        if not tail or min(tail) < 0 or max(tail) >= self.seam:
            return 0, 0, 0
        key = np.asarray(tail, dtype=self._dtype).tobytes()
        low, high, first = least - 1, len(tail), 0  # low occurs (or is below what counts), more than high does not
        while low < high:
            middle = (low + high + 1) // 2
            at = self._first(key[-middle * self._width :], 0)
            if at >= 0:
                low, first = middle, at
            else:
                high = middle - 1
        if low < least:
            return 0, 0, 0
        return low, first, self._last(key[-low * self._width :], first)

    def after(self, length: int, first: int, last: int, count: int, most: int) -> list[list[int]]:
        """What follows up to ``most`` of the occurrences first..last, evenly chosen, ``count`` tokens or fewer each."""
        step = max(1.0, (last - first) / most)
        width, letter = self._width, "H" if self._width == 2 else "I"
        found: list[list[int]] = []
        for i in range(min(most, last - first)):
            begin = (self._order[first + int(i * step)] + length) * width
            data = self._tokens[begin : begin + count * width]
            run = list(unpack(f">{len(data) // width}{letter}", data))
            if self.seam in run:
                run = run[: run.index(self.seam)]
            if run:
                found.append(run)
        return found

    def _first(self, key: bytes, low: int) -> int:
        """Where in the order the suffixes that begin with ``key`` start; -1 if there is none."""
        order, tokens, width, size = self._order, self._tokens, self._width, len(key)
        at = bisect_left(order, key, low, key=lambda p: tokens[p * width : p * width + size])
        if at == len(order):
            return -1
        begin = order[at] * width
        return at if tokens[begin : begin + size] == key else -1

    def _last(self, key: bytes, first: int) -> int:
        """The end of the slice that starts at ``first``: doubling steps, then halving ones."""
        order, tokens, width, size = self._order, self._tokens, self._width, len(key)

        def beyond(p: int) -> bool:
            return tokens[p * width : p * width + size] != key

        reach = 1
        while first + reach < len(order) and not beyond(order[first + reach]):
            reach *= 2
        return bisect_left(order, True, first + reach // 2, min(first + reach, len(order)), key=beyond)
