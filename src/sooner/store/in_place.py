"""An OpenVINO IR folder used where it lies: checked, hashed, never copied.

Knows what such a folder must hold. Does not know imports.
"""

from __future__ import annotations

from pathlib import Path

from sooner.errors import ModelNotFound
from sooner.store.cache import content_hash, recall, remember
from sooner.store.folder import IR, check_ir, describe, ir_quantisation
from sooner.store.manifest import ModelFiles

__all__ = ["use_ir"]


def use_ir(folder: Path, *, name: str, source: str) -> ModelFiles:
    """The `ModelFiles` of an exported IR. It is read through once, then again only if it changes.

    Raises `ModelNotFound` if ``tokenizer.json`` or ``config.json`` is missing, `CorruptModel` if the IR is not whole.
    """
    xml = folder / IR
    if not (folder / "config.json").is_file() and (gguf := next(folder.glob("*.gguf"), None)):
        raise ModelNotFound(f"{folder} has no config.json beside its IR; give the GGUF file {gguf} itself instead")
    binary = xml.with_suffix(".bin")
    if not binary.is_file():
        raise ModelNotFound(f"{binary} is missing; export the model again")
    sha256 = content_hash(xml, binary)
    if recall(f"whole\n{sha256}") is None:
        check_ir(xml)
        remember(f"whole\n{sha256}", {})
    return describe(folder, name=name, source=source, sha256=sha256, quantisation=ir_quantisation(folder))
