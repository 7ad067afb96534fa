"""LoRA adapters: whether a folder holds one, what it is called, and how it gets into a model that it was made for.

Knows peft and its files. Does not know how a model is loaded or run.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sooner.errors import CorruptModel, ModelNotFound, UnsupportedModel, one_line

__all__ = ["adapted", "adapter_name"]

_CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def adapter_name(folder: str) -> str:
    """The hash of the adapter, weights and how they are applied, by which answers name it; read before the model is.

    Raises `ModelNotFound`, `CorruptModel`, and `UnsupportedModel` for other adapters than LoRA or without peft.
    """
    where = Path(folder)
    if not (where / _CONFIG).is_file():
        raise ModelNotFound(
            f"{folder} is no adapter: it has no {_CONFIG}; give the folder that peft's save_pretrained wrote"
        )
    weights = next((where / name for name in _WEIGHTS if (where / name).is_file()), None)
    if weights is None:
        raise CorruptModel(f"the adapter {folder} has no weights ({' or '.join(_WEIGHTS)}); copy it again")
    try:
        config = json.loads((where / _CONFIG).read_text("utf-8"))
        kind, found = config.get("peft_type"), hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        found.update(weights.read_bytes())
    except (OSError, ValueError, AttributeError) as error:
        raise CorruptModel(f"the adapter {folder} cannot be read ({one_line(error)}); copy it again") from error
    if kind != "LORA":
        raise UnsupportedModel(f"the adapter {folder} is a {kind} adapter; sooner takes LoRA ones")
    if find_spec("peft") is None:
        raise UnsupportedModel("a LoRA adapter needs peft: pip install peft")
    return found.hexdigest()


def adapted(model: Any, folder: str, *, merge: bool) -> Any:
    """``model`` with the LoRA adapter in ``folder``; ``merge``: in the weights themselves, which must not be quantised.

    peft alone passes over weights that the model has no place for, and starts those that it misses at nothing. Raises
    `UnsupportedModel` for both.
    """
    import peft

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peft to the authors of transformers, and the like
            result = peft.PeftModel.from_pretrained(model, folder, local_files_only=True)
        held = peft.get_peft_model_state_dict(result, save_embedding_layers=False)
        stored = peft.load_peft_weights(folder, device="cpu")
        if strange := {name for name in held.keys() ^ stored.keys() if "lora_" in name}:
            raise ValueError(f"{len(strange)} weights are on one side only, such as {min(strange)}")
    except Exception as error:
        raise UnsupportedModel(
            f"the adapter {folder} does not fit the model ({one_line(error)}); use its own"
        ) from error
    return (result.merge_and_unload() if merge else result).eval()
