"""The KV cache's memory: one untouched mapping, cut into the tensors that the model writes.

Knows shapes and bytes. Does not know which block belongs to whom.
"""

from __future__ import annotations

import mmap
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import TargetError
from sooner.targets.openvino.graph import BLOCK_SIZE

__all__ = ["KVCache", "bytes_per_block"]

_Group = tuple[str, tuple[int, ...]]


class KVCache:
    """Every ``key_cache.N`` and ``value_cache.N`` of a compiled model, ``[blocks, heads, 32, D]``, as one mapping.

    The mapping is never written here, so that a page becomes resident only when a pass first writes to it. Tensors
    of one shape and type lie side by side: a block is copied in all layers by one assignment.
    """

    def __init__(self, compiled: Any, blocks: int) -> None:
        import openvino as ov

        self.tensors: dict[str, Any] = {}
        self._arrays: list[NDArray[np.uint8]] = []
        for (kind, shape), names in _groups(compiled).items():
            width = _width(kind, shape)
            array = np.frombuffer(_untouched(len(names) * blocks * width), np.uint8).reshape(len(names), blocks, width)
            self._arrays.append(array)
            for name, rows in zip(names, array, strict=True):
                typed = rows.view(f"u{_ITEM[kind]}")
                self.tensors[name] = ov.Tensor(typed, ov.Shape([blocks, *shape]), getattr(ov.Type, kind))

    def copy(self, source: int, target: int) -> None:
        """Copy all of one block's entries to another."""
        for array in self._arrays:
            array[:, target] = array[:, source]


_ITEM = {"f32": 4, "f16": 2, "bf16": 2}


def _untouched(size: int) -> mmap.mmap:
    """Memory that becomes resident page by page, in small pages: a huge one would add 2 MB for a block's 12 kB."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    try:
        memory = mmap.mmap(-1, size, **private)
    except OSError as error:
        raise TargetError(f"no memory for a KV pool of {size >> 20} MB ({error}): set a smaller pool_tokens") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


def bytes_per_block(compiled: Any) -> int:
    """Bytes of one block of tokens in all layers."""
    return sum(len(names) * _width(kind, shape) for (kind, shape), names in _groups(compiled).items())


def _groups(compiled: Any) -> dict[_Group, list[str]]:
    groups: dict[_Group, list[str]] = {}
    for port in compiled.inputs:
        if "_cache." in port.any_name:
            shape = tuple(dimension.get_length() for dimension in list(port.partial_shape)[1:])
            if shape[1] != BLOCK_SIZE:
                raise ValueError(f"{port.any_name} has blocks of {shape[1]} tokens instead of {BLOCK_SIZE}")
            groups.setdefault((port.element_type.get_type_name(), shape), []).append(port.any_name)
    return groups


def _width(kind: str, shape: tuple[int, ...]) -> int:
    return prod(shape) * _ITEM[kind]
