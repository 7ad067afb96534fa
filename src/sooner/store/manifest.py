"""What is known about a model on disk, and the manifest that keeps it beside an import.

Knows names, sizes and ids. Does not know how a model is found, imported or run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["MANIFEST", "ModelFiles", "moved", "read_manifest", "write_manifest"]

MANIFEST = "sooner.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model that is ready to load.

    ``xml``: the OpenVINO IR (its ``.bin`` lies beside it); ``tokenizer``: a ``tokenizer.json``, both in ``folder``
    unless the user's own files are used in place. ``eos_ids``: every token that ends a text. ``context``: the most
    positions, in tokens. ``vocab_size``: rows of the embedding. ``sliding_window``: in tokens, None = full attention
    everywhere. ``sha256`` names the weights: of the GGUF file where its blocks were read directly, else of the IR
    that runs (xml, then bin). ``quantisation``: of the weights that run, such as "Q4_1" or "int8". ``source``: where
    the model came from, as one would give it to `resolve`.
    """

    name: str
    folder: Path
    xml: Path
    tokenizer: Path
    chat_template: str | None
    eos_ids: tuple[int, ...]
    bos_id: int | None
    context: int
    architecture: str
    hidden_size: int
    layers: int
    vocab_size: int
    sliding_window: int | None
    sha256: str
    quantisation: str
    source: str


def write_manifest(files: ModelFiles) -> None:
    """Write the manifest of an import into its folder, with the size of every file there."""
    folder = files.folder
    record: dict[str, Any] = asdict(files)
    record.pop("folder")
    record.update({name: str(getattr(files, name).relative_to(folder)) for name in ("xml", "tokenizer")})
    sizes = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
    sizes.pop(MANIFEST, None)
    text = json.dumps({"format": _FORMAT, "model": record, "sizes": sizes}, indent=1)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> ModelFiles | None:
    """The model imported into ``folder``; None if there is none, or if a file is missing or has another size."""
    try:
        document = json.loads((folder / MANIFEST).read_bytes())
        if document["format"] != _FORMAT:
            return None
        if any((folder / name).stat().st_size != size for name, size in document["sizes"].items()):
            return None
        record = document["model"]
        record["eos_ids"] = tuple(record["eos_ids"])
        for name in ("xml", "tokenizer"):
            record[name] = folder / record[name]
        return ModelFiles(folder=folder, **record)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def moved(files: ModelFiles, folder: Path) -> ModelFiles:
    """The same model after its folder was renamed to ``folder``."""
    return replace(
        files,
        folder=folder,
        xml=folder / files.xml.relative_to(files.folder),
        tokenizer=folder / files.tokenizer.relative_to(files.folder),
    )
