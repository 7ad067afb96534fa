"""Tiny models of many families as Hugging Face folders, made in a moment, with weights wide enough for sharp rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from sooner.types import ROOT, Draft, Work

V = 64
CONTEXT = 160

_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": V,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_KINDS = ["sliding_attention", "full_attention", "sliding_attention"]

_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 12}),
    "qwen3": ("Qwen3Config", {}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 12, "layer_types": _KINDS}),
    "gemma2": (  # scores are capped so low that a target without the caps is another model
        "Gemma2Config",
        {"sliding_window": 12, "layer_types": _KINDS, "attn_logit_softcapping": 1.0, "query_pre_attn_scalar": 16},
    ),
    "gpt_oss": ("GptOssConfig", {"sliding_window": 12, "layer_types": _KINDS, "num_local_experts": 4}),
    "gpt2": ("GPT2Config", {"n_positions": CONTEXT, "n_embd": 32, "n_layer": 3, "n_head": 4}),
    "phi3": ("Phi3Config", {}),
    "gpt_neox": ("GPTNeoXConfig", {}),
    "opt": ("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "deepseek_v2": ("DeepseekV2Config", _LATENT),
    "deepseek_v3": ("DeepseekV3Config", {**_LATENT, "n_group": 1, "topk_group": 1}),
    "bamba": ("BambaConfig", {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "attn_layer_indices": [1]}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"]}),
    "bloom": ("BloomConfig", {"n_layer": 2, "n_head": 4}),
}


def configuration(family: str, **more: Any) -> Any:
    """What `build` makes a model of."""
    import transformers

    name, special = FAMILIES[family]
    return getattr(transformers, name)(**{**_SHAPE, **special, **more})


def build(family: str, folder: Path, seed: int = 0, **more: Any) -> Path:
    """A model of ``family`` with random weights in ``folder``."""
    import torch
    import transformers

    config = configuration(family, **more)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.3 / max(float(parameter.std()), 1e-6))
    model.save_pretrained(folder)
    return folder


def open_target(folder: Path, context: int = CONTEXT, **options: Any) -> Any:
    """A target over ``folder``, on the processor."""
    from sooner.targets.torch import load

    files = SimpleNamespace(folder=folder, sha256=folder.name, context=context)
    return load(files, **{"device": "cpu", "slots": 4, **options})


def grown(rng: np.random.Generator, most: int, pick: Callable[[], int] | None = None) -> Draft:
    """A random tree of up to ``most`` nodes with distinct siblings."""
    nodes: list[tuple[int, int]] = []
    for _ in range(int(rng.integers(0, most + 1))):
        token = pick() if pick is not None else int(rng.integers(0, V))
        node = (token, int(rng.integers(ROOT, len(nodes))))
        if node not in nodes:
            nodes.append(node)
    n = len(nodes)
    return Draft(tuple(t for t, _ in nodes), tuple(p for _, p in nodes), (0.5,) * n, ("tree",) * n)


def fresh(target: Any, tokens: Sequence[int], fed: Work) -> Any:
    """The rows of ``fed`` one path at a time, each in a session of its own, with its source, if any, read anew."""
    decoder = getattr(target, "decoder", target)
    rows = []
    for node in range(ROOT, len(fed.draft)):
        if decoder is not target:
            target._kept.clear()
        session = target.open(salt="fresh")
        path = [fed.draft.tokens[i] for i in fed.draft.path(node)]
        rows.append(target.score([Work(session, (*tokens, *fed.tokens, *path))])[0].logits[0].copy())
        session.close()
        decoder.slots.purge()
    return np.stack(rows)
