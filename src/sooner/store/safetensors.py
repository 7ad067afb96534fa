"""The safetensors format: named arrays in one file behind a JSON header.

Knows the format. Does not know what the arrays are for. (Reading a few megabytes needs no library.)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import CorruptModel

__all__ = ["read_safetensors", "to_bf16", "write_safetensors"]

_KINDS: Mapping[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_MOST_HEADER = 100_000_000


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in ``path`` by name, bfloat16 widened to float32. Raises `CorruptModel`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptModel(f"{path} cannot be read ({error.strerror or error}): check the path") from error
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 + size or size > _MOST_HEADER:
            raise ValueError("cut short")
        header = json.loads(data[8 : 8 + size])
        body = memoryview(data)[8 + size :]
        return {name: _array(entry, body) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptModel(f"{path} is truncated or no safetensors file: fetch or make it again") from error


def write_safetensors(path: Path, arrays: Mapping[str, NDArray[Any]], bf16: frozenset[str] = frozenset()) -> None:
    """Write ``arrays``, whole or not at all; those in ``bf16`` are float32 and rounded to it. Raises `OSError`."""
    kinds = {np.dtype(kind): name for name, kind in _KINDS.items() if name != "BF16"}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for name, array in sorted(arrays.items()):
        kind = "BF16" if name in bf16 else kinds[array.dtype]
        blob = (to_bf16(array) if name in bf16 else np.ascontiguousarray(array)).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.writelines(blobs)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """bfloat16 bits: the upper halves, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _array(entry: Mapping[str, Any], body: memoryview) -> NDArray[Any]:
    kind, shape = np.dtype(_KINDS[entry["dtype"]]), tuple(entry["shape"])
    first, end = entry["data_offsets"]
    if not 0 <= first <= end <= len(body) or end - first != kind.itemsize * math.prod(shape):
        raise ValueError("cut short")
    array = np.frombuffer(body[first:end], kind).reshape(shape)
    if entry["dtype"] == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array
