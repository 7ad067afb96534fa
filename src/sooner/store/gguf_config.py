"""From GGUF metadata to a Hugging Face ``config.json``, and what of it OpenVINO's own GGUF reader would get wrong.

Knows the llama, qwen2 and qwen3 architectures. Does not know tokenizers, weights or the cache. Refuses what neither
road computes exactly, rather than running a model that is subtly another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sooner.errors import UnsupportedModel
from sooner.store.gguf_file import Gguf
from sooner.store.gguf_tokenizer import GgufVocabulary

__all__ = ["QUICK_TYPES", "hugging_face_config", "needs_conversion", "quantisation"]

QUICK_TYPES = frozenset({"F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"})
"""Matrix types that OpenVINO's GGUF reader takes: all exactly, but Q4_1 and Q4_K, whose blocks' offsets it rounds to
whole quantisation steps (the model that runs is then that rounded one, for every reader of this engine)."""

_CLASSES: Mapping[str, str] = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

# Present in variants that share an architecture's name; each changes the arithmetic of a layer.
_FOREIGN_KEYS = ("expert_count", "logit_scale", "embedding_scale", "residual_scale", "attention.scale", "swin_norm")


def hugging_face_config(gguf: Gguf, words: GgufVocabulary) -> dict[str, Any]:
    """The ``config.json`` of ``gguf``. Raises `UnsupportedModel` or `CorruptModel`."""
    arch = gguf.need("general.architecture", str)
    if arch not in _CLASSES:
        raise UnsupportedModel(
            f"{gguf.path.name} is a {arch!r} model; sooner reads GGUF files of {', '.join(sorted(_CLASSES))}: "
            "use its Hugging Face folder or an OpenVINO export instead"
        )
    for key in _FOREIGN_KEYS:
        if gguf.metadata.get(f"{arch}.{key}"):
            raise UnsupportedModel(f"{gguf.path.name} is a {arch} variant with {key}, which sooner does not compute")
    names = {tensor.name for tensor in gguf.tensors}
    hidden, heads = gguf.need(f"{arch}.embedding_length", int), gguf.need(f"{arch}.attention.head_count", int)
    head_dim = gguf.get(f"{arch}.attention.key_length", int, hidden // heads)
    rotary = gguf.get(f"{arch}.rope.dimension_count", int, head_dim)
    if rotary != head_dim or gguf.get(f"{arch}.attention.value_length", int, head_dim) != head_dim:
        raise UnsupportedModel(f"{gguf.path.name} rotates only part of each head, which sooner does not compute")
    return {
        "architectures": [_CLASSES[arch]],
        "model_type": arch,
        "hidden_size": hidden,
        "num_hidden_layers": gguf.need(f"{arch}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.get(f"{arch}.attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "intermediate_size": gguf.need(f"{arch}.feed_forward_length", int),
        "hidden_act": "silu",
        "rms_norm_eps": gguf.need(f"{arch}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": gguf.get(f"{arch}.rope.freq_base", float, 10000.0),
        "rope_scaling": _rope_scaling(gguf, arch, names),
        "max_position_embeddings": gguf.get(f"{arch}.context_length", int, 2048),
        "sliding_window": gguf.get(f"{arch}.attention.sliding_window", int) or None,
        "vocab_size": _rows(gguf, words),
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": False,
        "torch_dtype": "float16",
        "bos_token_id": words.bos_id,
        "eos_token_id": list(words.eos_ids),
    }


def needs_conversion(gguf: Gguf, config: Mapping[str, Any]) -> str | None:
    """Why OpenVINO's reader cannot be used for ``gguf``; None if it can."""
    refused = sorted({t.type for t in gguf.tensors if len(t.shape) > 1} - QUICK_TYPES)
    if refused:
        return f"{', '.join(refused)} tensors"
    if config["rope_scaling"] is not None:
        return "scaled rotary positions"
    return None


def quantisation(gguf: Gguf) -> str:
    """The type of most of the weights, by elements."""
    counts: dict[str, int] = {}
    for tensor in gguf.tensors:
        if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
            counts[tensor.type] = counts.get(tensor.type, 0) + tensor.size
    return max(counts, key=lambda name: counts[name], default="F32")


def _rows(gguf: Gguf, words: GgufVocabulary) -> int:
    for tensor in gguf.tensors:
        if tensor.name == "token_embd.weight" and len(tensor.shape) == 2:
            if tensor.shape[1] < len(words.tokens):
                raise UnsupportedModel(f"{gguf.path.name} has more tokens than embeddings; download it again")
            return tensor.shape[1]
    raise UnsupportedModel(f"{gguf.path.name} has no token embeddings; it is not a whole language model")


def _rope_scaling(gguf: Gguf, arch: str, names: set[str]) -> dict[str, Any] | None:
    kind = gguf.get(f"{arch}.rope.scaling.type", str, "none")
    if "rope_freqs.weight" in names:
        return {"rope_type": "gguf_frequencies"}
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": gguf.need(f"{arch}.rope.scaling.factor", float)}
    raise UnsupportedModel(
        f"{gguf.path.name} scales its positions by {kind!r}, which sooner does not compute from GGUF; "
        "use the model's Hugging Face folder"
    )
