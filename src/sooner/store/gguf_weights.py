"""Writes a GGUF file's weights as a Hugging Face folder's safetensors, dequantised.

Knows the two naming schemes and the order of llama's rotary rows. Does not know configuration files. Needs the
packages gguf and safetensors (extra ``convert``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from errno import EIO
from pathlib import Path
from typing import Any

import numpy as np

from sooner.errors import one_line

__all__ = ["hugging_face_name", "llama3_scaling", "write_safetensors"]

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SHARD_BYTES = 1 << 30
_LLAMA3_CONTEXT = 8192


def hugging_face_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for those that are no weights. Raises KeyError for unknown ones."""
    if name == "rope_freqs.weight":
        return None
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        return f"model.layers.{layer}.{_LAYER[part]}.{kind}"
    return f"{_TOP[stem]}.{kind}"


def llama3_scaling(factors: Any, theta: float) -> dict[str, Any]:
    """The ``rope_scaling`` of Llama 3.1 and later that divides the rotary frequencies by ``factors`` (``[d / 2]``).

    GGUF keeps the result, Hugging Face its parameters: only those Meta published are tried. Raises ValueError if
    the factors come from elsewhere.
    """
    factor = round(float(factors.max()), 3)
    half = len(factors)
    wavelengths = 2 * np.pi * theta ** (np.arange(half) / half)
    smooth = np.clip((_LLAMA3_CONTEXT / wavelengths - 1.0) / 3.0, 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / factor + smooth)
    if not np.allclose(factors, expected, rtol=1e-3):
        raise ValueError("its rotary positions are scaled in a way that sooner does not know")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def write_safetensors(gguf: Path, folder: Path) -> None:
    """Write ``model-*.safetensors`` and their index into ``folder``, whose ``config.json`` describes the model.

    Raises `OSError`.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    config = _completed(gguf, folder / "config.json")
    index: dict[str, str] = {}
    shard: dict[str, Any] = {}
    shards = 0

    def flush() -> None:
        nonlocal shards
        if shard:
            name = f"model-{shards:05d}.safetensors"
            try:
                save_file(shard, folder / name, metadata={"format": "pt"})
            except SafetensorError as error:  # as it calls a full disk
                raise OSError(EIO, one_line(error), str(folder / name)) from error
            index.update(dict.fromkeys(shard, name))
            shard.clear()
            shards += 1

    for name, values in _tensors(gguf, config):
        if sum(kept.nbytes for kept in shard.values()) + values.nbytes > _SHARD_BYTES:
            flush()
        shard[name] = values
    flush()
    document = {"metadata": {}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document), encoding="utf-8")


def _completed(gguf: Path, path: Path) -> dict[str, Any]:
    """The configuration, with the rotary scaling that only the weights tell."""
    from gguf import GGUFReader

    config: dict[str, Any] = json.loads(path.read_bytes())
    for tensor in GGUFReader(gguf).tensors:
        if tensor.name == "rope_freqs.weight":
            config["rope_scaling"] = llama3_scaling(np.asarray(tensor.data, np.float64), config["rope_theta"])
            path.write_text(json.dumps(config), encoding="utf-8")
    return config


def _tensors(gguf: Path, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    kind = np.dtype(config["torch_dtype"])
    for tensor in GGUFReader(gguf).tensors:
        name = hugging_face_name(tensor.name)
        if name is None:
            continue
        values = dequantize(tensor.data, tensor.tensor_type).astype(kind)
        if config["model_type"] == "llama":
            heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
            part = name.split(".")[-2]
            if part in heads:
                values = _unpermute(values, heads[part])
        yield name, np.ascontiguousarray(values)


def _unpermute(values: Any, heads: int) -> Any:
    """GGUF keeps llama's rotary pairs side by side (2i, 2i + 1), Hugging Face as halves (i, i + d/2)."""
    shape = values.shape
    return values.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
