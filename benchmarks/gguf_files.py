"""GGUF files made from others: metadata and tensors copied, but for what the caller changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

__all__ = ["rewrite"]

Named = tuple[str, Any]
"""A tensor's name and data."""


def rewrite(
    source: Path,
    path: Path,
    fields: Callable[[gguf.GGUFReader], Mapping[str, Any]],
    tensors: Callable[[Any], Iterable[Named]],
) -> Path:
    """Write ``source`` to ``path`` with other values for some ``fields``; ``tensors`` gives, for each tensor, those
    that take its place (as quantised as it is)."""
    reader = gguf.GGUFReader(source)
    changed = fields(reader)
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = changed.get(name, field.contents())
        kind = field.types[0]
        writer.add_key_value(name, value, kind, field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        for name, data in tensors(tensor):
            writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
