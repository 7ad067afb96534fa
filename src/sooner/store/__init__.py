"""Finds a model, wherever it is, and makes it ready to load: the built-in default, files, folders, Hugging Face ids.

Knows sources and names. Does not know how files are imported (`import_model`) or run (`sooner.targets`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from sooner.errors import ModelNotFound, nearest
from sooner.store.cache import cache_dir, content_hash, wipe
from sooner.store.manifest import MANIFEST, ModelFiles, read_manifest
from sooner.store.place import imported

__all__ = ["ModelFiles", "find_models", "list_models", "locate", "remove", "resolve", "resolve_folder"]

_HUB_ID = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<quant>[\w.-]+))?")


def resolve(
    model: str | None = None, *, offline: bool = False, progress: Callable[[str], None] | None = None
) -> ModelFiles:
    """The files of ``model``, imported into the cache if they are not there yet.

    ``model``: a ``.gguf`` file, an OpenVINO or Hugging Face folder, the name of an imported model, a Hugging Face id
    (``owner/name``, or ``owner/name:QUANT`` for one GGUF file of it), or None for the built-in default.
    ``offline`` (or the environment's ``HF_HUB_OFFLINE``) forbids the network. ``progress`` gets one-line messages.
    Raises `ModelNotFound`, `CorruptModel`, `UnsupportedModel`, `CacheError` or `MissingExtra`.
    """
    from sooner.store.default import DEFAULT_NAME

    say = progress or (lambda _: None)
    offline = _offline(offline)
    if model is None or model in ("", DEFAULT_NAME):
        return _default(offline, say)
    path = Path(model).expanduser()
    if path.exists():
        return _local(path, say)
    if known := _called(model):
        return known[0]
    return _local(_fetched(model, offline=offline, say=say), say, name=model)


def resolve_folder(
    model: str | None = None, *, offline: bool = False, progress: Callable[[str], None] | None = None
) -> ModelFiles:
    """The Hugging Face folder of ``model``, as torch runs it: used where it lies, or written into the cache from a GGUF
    file. Arguments and errors as for `resolve`."""
    from sooner.store.hugging_face import exported, use_folder

    say = progress or (lambda _: None)
    path, name = locate(model, offline=offline, progress=progress)
    source = model or name
    if path.is_file():
        return exported(path, name=name, source=source, say=say)
    return use_folder(path, name=name, source=source)


def locate(
    model: str | None = None, *, offline: bool = False, progress: Callable[[str], None] | None = None
) -> tuple[Path, str]:
    """The GGUF file or folder that ``model`` came from, and its name. Arguments and errors as for `resolve`."""
    from sooner.store.default import DEFAULT_NAME, DEFAULT_SOURCE, default_gguf

    say = progress or (lambda _: None)
    if model is None or model in ("", DEFAULT_NAME, DEFAULT_SOURCE):
        return default_gguf(offline=_offline(offline), say=say), DEFAULT_NAME
    path = Path(model).expanduser()
    if not path.exists() and (known := _called(model)) and known[0].source != model:
        return locate(known[0].source, offline=offline, progress=progress)
    if not path.exists():
        path = _fetched(model, offline=_offline(offline), say=say, ir=False)
        return path, model
    path = path.absolute()
    path = path.parent if path.suffix == ".xml" else path
    ggufs = sorted(path.glob("*.gguf")) if path.is_dir() and not (path / "config.json").is_file() else []
    return (ggufs[0], ggufs[0].stem) if len(ggufs) == 1 else (path, path.stem if path.is_file() else path.name)


def _offline(asked: bool) -> bool:
    return asked or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def _fetched(model: str, *, offline: bool, say: Callable[[str], None], ir: bool = True) -> Path:
    match = _HUB_ID.fullmatch(model)
    if match is None or model.endswith(".gguf"):
        raise ModelNotFound(
            f"no model {model!r}: give a .gguf file, a model folder, a Hugging Face id such as owner/name:Q4_0, "
            "or a name from `sooner models`"
        )
    from sooner.store.hub import fetch

    return fetch(match["repo"], match["quant"], offline=offline, say=say, ir=ir)


def list_models() -> list[ModelFiles]:
    """The models in the cache, by name; damaged ones are left out."""
    found = (read_manifest(manifest.parent) for manifest in cache_dir("models").glob(f"*/{MANIFEST}"))
    return sorted((files for files in found if files), key=lambda files: (files.name, files.folder))


def find_models(name: str) -> list[ModelFiles]:
    """The models in the cache that ``name`` names: by name, source, sha256 or folder, as `resolve` and `remove` find
    them too. Raises `ModelNotFound` if there is none."""
    if found := _called(name):
        return found
    known = sorted({files.name for files in list_models()})
    raise ModelNotFound(
        f"there is no model {name!r} in the cache{nearest(name, known)}; there are: {', '.join(known) or 'none'}; "
        "sooner models pull fetches one"
    )


def remove(name: str) -> int:
    """Remove every import that `find_models` finds from the cache; the bytes freed. Raises `ModelNotFound`."""
    from sooner.store.default import DEFAULT_SHA256, forget_download

    found = find_models(name)
    freed = forget_download() if any(files.sha256 == DEFAULT_SHA256 for files in found) else 0
    for files in found:
        freed += sum(path.stat().st_size for path in files.folder.rglob("*") if path.is_file())
        wipe(files.folder)
    return freed


def _called(name: str) -> list[ModelFiles]:
    def keys(files: ModelFiles) -> tuple[str, ...]:
        return files.name, files.source, files.sha256, str(files.folder), files.folder.name

    return [files for files in list_models() if name in keys(files)]


def _default(offline: bool, say: Callable[[str], None]) -> ModelFiles:
    from sooner.store.default import DEFAULT_NAME, DEFAULT_SHA256, DEFAULT_SOURCE, default_gguf

    if files := imported(DEFAULT_SHA256):
        return files
    from sooner.store.import_model import import_gguf

    gguf = default_gguf(offline=offline, say=say)
    return import_gguf(gguf, name=DEFAULT_NAME, source=DEFAULT_SOURCE, say=say)


def _local(path: Path, say: Callable[[str], None], name: str | None = None) -> ModelFiles:
    path = path.absolute()
    source = name or str(path)
    if path.is_file() and path.suffix != ".xml":
        if files := imported(content_hash(path)):
            return files
        from sooner.store.import_model import import_gguf

        return import_gguf(path, name=name or path.stem, source=source, say=say)
    from sooner.store.folder import IR
    from sooner.store.in_place import use_ir

    folder = path if path.is_dir() else path.parent
    if (folder / IR).is_file():
        return use_ir(folder, name=name or folder.name, source=source)
    from sooner.store.import_model import import_folder, import_gguf

    weights = any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))
    if weights and (folder / "config.json").is_file():
        return import_folder(folder, name=name or folder.name, source=source, say=say)
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return import_gguf(ggufs[0], name=name or ggufs[0].stem, source=source, say=say)
    if ggufs:
        raise ModelNotFound(f"{folder} holds {len(ggufs)} .gguf files; name one, such as {ggufs[0]}")
    raise ModelNotFound(
        f"{folder} holds no model: no .gguf file, no {IR}, no config.json with safetensors beside it; check the path"
    )
