"""Hugging Face folders used where they lie, and made from GGUF files: what the torch target runs.

Knows which files such a folder must hold and how one is exported. Does not know imports for other engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sooner.errors import CacheError, MissingExtra, ModelNotFound, UnsupportedModel
from sooner.store.cache import cache_dir, content_hash, locked, publish, workspace, writing
from sooner.store.folder import IR, describe, write_settings
from sooner.store.gguf_config import hugging_face_config, quantisation
from sooner.store.gguf_file import read_gguf
from sooner.store.gguf_tokenizer import tokenizer_json, vocabulary
from sooner.store.manifest import ModelFiles

__all__ = ["export_gguf", "exported", "use_folder"]

Say = Callable[[str], None]


def use_folder(folder: Path, *, name: str, source: str) -> ModelFiles:
    """The `ModelFiles` of a folder with ``config.json``, weights and ``tokenizer.json``; nothing is copied.

    Its ``xml`` does not exist. Raises `ModelNotFound`, `CorruptModel`, `UnsupportedModel`.
    """
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")])
    if not weights:
        if (folder / IR).is_file():
            raise UnsupportedModel(
                f"{folder} holds an OpenVINO export, which torch does not run: give its Hugging Face folder, or leave "
                "out --device and --backend"
            )
        raise ModelNotFound(f"{folder} has no safetensors; copy them there from the model's Hugging Face page")
    config = folder / "config.json"
    sha256 = content_hash(*([config] if config.is_file() else []), *weights)
    facts = {"sha256": sha256, "quantisation": "as stored"}
    return describe(folder, name=name, source=source, **facts, encoders=True, defaults=_text_defaults)


def _text_defaults(kind: str) -> Mapping[str, Any]:
    """What configurations that hold a language model of ``kind`` leave out (LLaVA's), as transformers has it; not which
    tokens end a text, which is the tokenizer's to say."""
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:  # said when the model is opened
        return {}
    found = CONFIG_MAPPING[kind]().to_dict() if kind in CONFIG_MAPPING else {}
    return {name: value for name, value in found.items() if not name.endswith("_token_id")}


def exported(gguf: Path, *, name: str, source: str, say: Say) -> ModelFiles:
    """The export of ``gguf`` in the cache, made if it is not there. Raises as `export_gguf`."""
    final = cache_dir("exports") / content_hash(gguf)[:24]
    if not final.is_dir():
        _demand_writers()  # before anything is said of it
        with locked(f"export-{final.name}", lambda: say("waiting for another process that exports this model")):
            if not final.is_dir():
                with workspace(f"export-{final.name}") as room:
                    say(f"writing the weights of {name} as a Hugging Face folder (once)")
                    export_gguf(gguf, room / "model")
                    publish(room / "model", final)
    return use_folder(final, name=name, source=source)


def _demand_writers() -> None:
    if any(find_spec(package) is None for package in ("gguf", "safetensors")):
        raise MissingExtra("writing a model as a Hugging Face folder", "torch")


def export_gguf(gguf: Path, folder: Path) -> str:
    """Write ``gguf`` as a Hugging Face folder: configuration, tokenizer, and its weights as 16-bit safetensors, which
    hold what the quantised ones stood for. Returns how they were quantised.

    Raises `MissingExtra`, `CorruptModel`, `UnsupportedModel`, `CacheError`.
    """
    _demand_writers()
    from sooner.store.gguf_weights import write_safetensors

    read = read_gguf(gguf)
    words = vocabulary(read)
    config = hugging_face_config(read, words)
    if folder.exists() and any(folder.iterdir()):
        raise CacheError(f"{folder} is not empty: name a new folder")
    with writing():
        folder.mkdir(parents=True, exist_ok=True)
        write_settings(folder, config, words, tokenizer_json(read, words), read.get("tokenizer.chat_template", str))
        write_safetensors(gguf, folder)
    return quantisation(read)
