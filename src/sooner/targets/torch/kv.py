"""The cache's tensors: for every layer keys and values ``[slots, heads, positions, width]``, grown as they are needed.

Knows tensors and indices. Does not know who holds a slot, nor how entries are computed.

An entry's place is its position in the text, in every layer, whatever the layer attends to: cutting a text back is
forgetting its end, in sliding windows too, and a row's attention always sums the same entries in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["BLOCK", "KVTensors", "blocks"]

BLOCK = 512
"""Attention runs over multiples of so many positions. It is what torch's attention on processors works through at a
time: with all lengths a multiple of it, padding a text's entries with masked ones changes no bit of a row."""


def blocks(length: int, block: int = BLOCK) -> int:
    """``length`` rounded up to whole blocks, in positions."""
    return -(-length // block) * block


class KVTensors:
    """Room for ``most`` slots of ``context`` positions, taken from the machine by doubling.

    ``length`` and ``count``: positions and slots there is room for now; ``moves``: how often the tensors were replaced.
    Behind the last position lies one more, into which passes of a fixed shape write what is padding.
    """

    def __init__(self, most: int, context: int) -> None:
        self.most = most
        self.context = context
        self.count = 1
        self.length = BLOCK
        self.moves = 0
        self.block = BLOCK
        self._layers: dict[int, tuple[Any, Any]] = {}

    @property
    def layers(self) -> Sequence[int]:
        """The layers that have entries."""
        return sorted(self._layers)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's entries in all layers seen so far."""
        pairs = self._layers.values()
        return sum(t.shape[1] * t.shape[3] * t.element_size() for pair in pairs for t in pair)

    @torch.inference_mode()
    def reserve(self, slots: int, length: int) -> bool:
        """Make room for ``slots`` slots of ``length`` positions; whether the tensors moved."""
        count, room = self.count, self.length
        while count < slots:
            count = min(2 * count, self.most)
        while room < length:
            room = min(2 * room, blocks(self.context))
        if (count, room) == (self.count, self.length):
            return False
        for index, pair in self._layers.items():
            self._layers[index] = (self._larger(pair[0], count, room), self._larger(pair[1], count, room))
        self.count, self.length = count, room
        self.moves += 1
        return True

    def layer(self, index: int, key: Any, value: Any) -> tuple[Any, Any]:
        """The tensors of layer ``index``, made at first sight of its entries ``[1, heads, rows, width]``."""
        pair = self._layers.get(index)
        if pair is None:
            shapes = [(self.count, t.shape[1], self.length + 1, t.shape[3]) for t in (key, value)]
            pair = (key.new_zeros(shapes[0]), value.new_zeros(shapes[1]))
            self._layers[index] = pair
        return pair

    @torch.inference_mode()
    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first ``count`` entries of one slot to another."""
        self.reserve(max(source, target) + 1, count)
        for pair in self._layers.values():
            for tensor in pair:
                tensor[target, :, :count] = tensor[source, :, :count]

    @torch.inference_mode()
    def move(self, slot: int, start: int, places: Sequence[int]) -> None:
        """Bring the entries at ``places`` of ``slot`` to consecutive positions from ``start`` on."""
        for pair in self._layers.values():
            for tensor in pair:
                index = torch.tensor(places, device=tensor.device)
                tensor[slot, :, start : start + len(places)] = tensor[slot].index_select(1, index)

    def _larger(self, tensor: Any, count: int, room: int) -> Any:
        grown = tensor.new_zeros((count, tensor.shape[1], room + 1, tensor.shape[3]))
        grown[: tensor.shape[0], :, : self.length] = tensor[:, :, : self.length]
        return grown
