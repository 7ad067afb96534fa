"""Reads what a model folder says about itself in the usual Hugging Face files.

Knows ``config.json``, ``generation_config.json``, ``tokenizer_config.json`` and the files of chat templates. Does not
know weights or the cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sooner.errors import CorruptModel, ModelNotFound, UnsupportedModel
from sooner.store.gguf_tokenizer import GgufVocabulary
from sooner.store.manifest import ModelFiles
from sooner.types import RUNNING_STATES

__all__ = [
    "IR",
    "SETTINGS",
    "check_ir",
    "describe",
    "ir_quantisation",
    "refuse_encoder",
    "refuse_eyes",
    "write_settings",
]

IR = "openvino_model.xml"

_CONTEXT = ("max_position_embeddings", "n_positions", "max_target_positions", "seq_length")
_RELATIVE = {"seq_length": 512}
"""The context of encoder-decoder models whose relative positions have no end (T5's): what they were trained on."""

_STATES = (*RUNNING_STATES, "ssm_state")
"""Words in the names of models with a running state, or of what only they configure."""

SETTINGS = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "chat_template.json"),
)
"""The files beside a model's weights."""


def describe(
    folder: Path,
    *,
    name: str,
    source: str,
    sha256: str,
    quantisation: str,
    encoders: bool = False,
    defaults: Callable[[str], Mapping[str, Any]] = lambda kind: {},
) -> ModelFiles:
    """The `ModelFiles` of a folder that holds an IR, a tokenizer and its configuration files; ``encoders``:
    of one with weights for torch, which runs models with an encoder, too. ``defaults``: what goes without saying of a
    language model of some ``model_type`` inside another configuration.

    Raises `ModelNotFound` if one is missing, `CorruptModel` if one is damaged.
    """
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelNotFound(f"{folder} has no tokenizer.json; copy it there from the model's Hugging Face page")
    config = _read_json(folder / "config.json")
    if config is None:
        raise ModelNotFound(f"{folder} has no config.json; copy it there from the model's Hugging Face page")
    text = config.get("text_config", config)
    if text is not config:
        text = {**defaults(str(text.get("model_type"))), **text}
    if not encoders:
        refuse_encoder(folder)
    settings = _read_json(folder / "tokenizer_config.json") or {}
    generation = _read_json(folder / "generation_config.json") or {}
    try:
        return ModelFiles(
            name=name,
            folder=folder,
            xml=folder / IR,
            tokenizer=tokenizer,
            chat_template=_chat_template(folder, settings),
            eos_ids=_ids(generation.get("eos_token_id")) or _ids(text.get("eos_token_id")),
            bos_id=next(iter(_ids(text.get("bos_token_id"))), None),
            context=int(_named(text if not text.get("is_encoder_decoder") else {**_RELATIVE, **text}, *_CONTEXT)),
            architecture=str(text["model_type"]),
            hidden_size=int(_named(text, "hidden_size", "n_embd", "d_model")),
            layers=int(_named(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")),
            vocab_size=int(text["vocab_size"]),
            sliding_window=_window(text),
            sha256=sha256,
            quantisation=quantisation,
            source=source,
        )
    except (KeyError, TypeError, ValueError) as error:
        _refuse_state(text, folder)
        raise CorruptModel(f"{folder / 'config.json'} lacks {error}; copy it again from the model's page") from error


def refuse_encoder(folder: Path) -> None:
    """Raises `UnsupportedModel` for a model with an encoder, which OpenVINO does not run here."""
    if (_read_json(folder / "config.json") or {}).get("is_encoder_decoder"):
        raise UnsupportedModel(f"{folder} holds an encoder-decoder model, which runs on torch: add --backend torch")


def refuse_eyes(folder: Path) -> None:
    """Raises `UnsupportedModel` for weights of a model that looks at pictures: they are not converted here."""
    if "vision_config" in (_read_json(folder / "config.json") or {}):
        raise UnsupportedModel(f"{folder} holds a vision-language model, which runs on torch: add --backend torch")


def write_settings(
    folder: Path, config: Mapping[str, Any], words: GgufVocabulary, document: Mapping[str, Any], template: str | None
) -> None:
    """Write the Hugging Face files of a model that came without them."""
    bos, eos = config["bos_token_id"], config["eos_token_id"]
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": words.add_bos,
        "bos_token": None if bos is None else words.tokens[bos],
        "eos_token": None if words.eos_id is None else words.tokens[words.eos_id],
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    files: dict[str, Any] = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": bos, "eos_token_id": eos},
        "tokenizer_config.json": {key: value for key, value in settings.items() if value is not None},
        "tokenizer.json": document,
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def check_ir(xml: Path) -> None:
    """Check that an IR is whole: every constant lies inside the ``.bin``. Raises `CorruptModel`."""
    binary = xml.with_suffix(".bin")
    try:
        text, size = xml.read_bytes(), binary.stat().st_size
    except OSError as error:
        raise CorruptModel(f"{error.filename} cannot be read ({error.strerror}); export the model again") from error
    if not text.rstrip().endswith(b"</net>"):
        raise CorruptModel(f"{xml} is truncated or no OpenVINO model; export it again")
    ends = (int(m[1]) + int(m[2]) for m in re.finditer(rb'offset="(\d+)"[^>]*? size="(\d+)"', text))
    if (wanted := max(ends, default=0)) > size:
        raise CorruptModel(f"{binary} is truncated ({size} of {wanted} bytes); export the model again")


def ir_quantisation(folder: Path) -> str:
    """How the weights of an exported IR are compressed, as far as the folder tells."""
    config = _read_json(folder / "openvino_config.json") or {}
    bits = (config.get("quantization_config") or {}).get("bits")
    return f"int{bits}" if bits else str(config.get("dtype") or "as exported")


def _read_json(path: Path) -> dict[str, Any] | None:
    """The object in ``path``; None if there is no such file. Raises `CorruptModel` if it holds anything else."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CorruptModel(f"{path} cannot be read ({error}); copy it again from the model's page") from error
    if not isinstance(value, dict):
        raise CorruptModel(f"{path} holds no object; copy it again from the model's page")
    return value


def _named(config: Mapping[str, Any], name: str, *others: str) -> Any:
    """``config``'s value of ``name``, which older models call by one of ``others``. Raises KeyError."""
    return next((config[key] for key in (name, *others) if config.get(key) is not None), None) or config[name]


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    older = _read_json(folder / "chat_template.json") or {}  # of processors: LLaVA's
    template = older.get("chat_template") or settings.get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    return template if isinstance(template, str) else None


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool))


def _refuse_state(config: Mapping[str, Any], folder: Path) -> None:
    """Raises `UnsupportedModel` where what a configuration lacks is what models with a running state do not have."""
    if any(word in name for word in _STATES for name in (str(config.get("model_type")), *config)):
        raise UnsupportedModel(
            f"{folder} holds a model of type {config.get('model_type')}, which keeps one running state instead of an "
            "entry per token: it cannot be cut back to an accepted draft; use a model with attention in every layer"
        )


def _window(config: Mapping[str, Any]) -> int | None:
    kinds = config.get("layer_types")
    if config.get("use_sliding_window") is False or (kinds and "sliding_attention" not in kinds):
        return None
    window = config.get("sliding_window")
    return window if isinstance(window, int) and window > 0 else None
