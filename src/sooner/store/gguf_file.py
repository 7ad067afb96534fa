"""Reads and checks a GGUF file's header: metadata, tensor index, extents. Never touches a weight.

Knows the container format (ggml's docs/gguf.md, versions 2 and 3). Does not know what a tensor or a key means.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sooner.errors import CorruptModel, ModelNotFound, UnsupportedModel

__all__ = ["TENSOR_TYPES", "Gguf", "TensorInfo", "read_gguf"]

TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""Tensor type id -> (name, elements per block, bytes per block)."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_ITEMS = 1 << 24
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor index. ``shape`` is in GGUF order, the contiguous dimension first."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Gguf:
    """A checked header: every tensor lies inside the file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The metadata value of ``key``, or ``default``; raises `CorruptModel` if it has another type."""
        value = self.metadata.get(key, default)
        if value is not default and not isinstance(value, kind):
            raise CorruptModel(f"{self.path.name} is damaged: {key} has an unexpected type; download it again")
        return value

    def need(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """The metadata value of ``key``; raises `CorruptModel` if it is missing."""
        if key not in self.metadata:
            raise CorruptModel(f"{self.path.name} is incomplete: it has no {key}; download it again")
        return self.get(key, kind)


def read_gguf(path: Path) -> Gguf:
    """Read and check the header of the file at ``path``.

    Raises `ModelNotFound` if it cannot be opened, `CorruptModel` if it is not GGUF, truncated or damaged, and
    `UnsupportedModel` for GGUF version 1, big-endian files, split files and unknown tensor types.
    """
    with _mapped(path) as data:
        try:
            return _parse(path, data)
        except (struct.error, IndexError) as error:
            raise _truncated(path, "its header ends early") from error
        except UnicodeDecodeError as error:
            raise CorruptModel(f"{path.name} is damaged: it holds text that is not UTF-8; download it again") from error


def _parse(path: Path, data: mmap.mmap) -> Gguf:
    cursor = _Cursor(path, data, 4)
    version = cursor.scalar("I")
    if version & 0xFFFF == 0:
        raise UnsupportedModel(f"{path.name} is a big-endian GGUF file; use a little-endian one")
    if version not in (2, 3):
        raise UnsupportedModel(f"{path.name} is GGUF version {version}, not 2 or 3; convert it again")
    tensor_count, key_count = cursor.count(), cursor.count()
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    if metadata.get("split.count", 0) > 1:
        raise UnsupportedModel(
            f"{path.name} is one part of a split GGUF file; join the parts with llama-gguf-split --merge"
        )
    index = [_tensor(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise CorruptModel(f"{path.name} is damaged: its alignment is {alignment!r}; download it again")
    start = -(-cursor.at // alignment) * alignment
    for tensor in index:
        if start + tensor.offset + tensor.size > len(data):
            missing = start + tensor.offset + tensor.size - len(data)
            raise _truncated(path, f"tensor {tensor.name} lacks {missing} bytes")
    return Gguf(path, metadata, tuple(index))


def _tensor(cursor: _Cursor) -> TensorInfo:
    name = cursor.string()
    dimensions = cursor.scalar("I")
    if dimensions > _MAX_DIMENSIONS:
        raise CorruptModel(f"{cursor.path.name} is damaged: tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.scalar("Q") for _ in range(dimensions))
    kind, offset = cursor.scalar("I"), cursor.scalar("Q")
    if kind not in TENSOR_TYPES:
        raise UnsupportedModel(f"{cursor.path.name} holds tensors of unknown type {kind}; use Q4_0, Q8_0 or Q4_K_M")
    type_name, block, size = TENSOR_TYPES[kind]
    elements = 1
    for length in shape:
        elements *= length
    if elements % block:
        raise CorruptModel(f"{cursor.path.name} is damaged: tensor {name!r} is no whole number of {type_name} blocks")
    return TensorInfo(name, shape, type_name, offset, elements // block * size)


class _Cursor:
    """Reads little-endian values one after another and refuses to leave the file."""

    def __init__(self, path: Path, data: mmap.mmap, at: int) -> None:
        self.path, self.data, self.at = path, data, at

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def count(self) -> int:
        value: int = self.scalar("Q")
        if value > min(len(self.data), _MAX_ITEMS):
            raise _truncated(self.path, f"it announces {value} entries")
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        end = self.at + length
        if end > len(self.data):
            raise _truncated(self.path, "a text runs past its end")
        raw = self.data[self.at : end]
        self.at = end
        return raw.decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise CorruptModel(f"{self.path.name} is damaged: unknown metadata type {kind}; download it again")
        return self.scalar(_SCALARS[kind])

    def array(self) -> list[Any]:
        kind, length = self.scalar("I"), self.count()
        if kind in _SCALARS:
            code = f"<{length}{_SCALARS[kind]}"
            values = list(struct.unpack_from(code, self.data, self.at))
            self.at += struct.calcsize(code)
            return values
        if kind == _STRING:
            return [self.string() for _ in range(length)]
        raise CorruptModel(f"{self.path.name} is damaged: nested or unknown array type {kind}; download it again")


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise CorruptModel(f"{path} is not a GGUF file; give a .gguf file or a model folder")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from error


def _truncated(path: Path, why: str) -> CorruptModel:
    return CorruptModel(f"{path.name} is truncated or damaged ({why}); download it again")
