"""Tiny encoder-decoder models as Hugging Face folders, copies of them with fewer decoder layers, and words for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_torch import CONTEXT, V

END = 1
"""The token that ends a source, and a text."""

_BART: dict[str, Any] = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": CONTEXT,
    "forced_eos_token_id": None,
}
PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5Config", {"d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "n_positions": CONTEXT}),
    "bart": ("BartConfig", {**_BART, "decoder_start_token_id": END, "bos_token_id": 2}),
    "marian": ("MarianConfig", _BART),
}


def build_pair(family: str, folder: Path, seed: int = 0, **more: Any) -> Path:
    """A tiny encoder-decoder with weights so wide that its texts are not one token again and again."""
    import torch
    import transformers

    name, special = PAIRS[family]
    torch.manual_seed(seed)
    shape = {"d_model": 32, "vocab_size": V, "pad_token_id": 0, "eos_token_id": END, "decoder_start_token_id": 0}
    config = getattr(transformers, name)(**{**shape, **special, **more})
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.requires_grad:
                parameter.mul_(0.3 / max(float(parameter.std()), 1e-6))
    model.save_pretrained(folder)
    return folder


def prune_pair(folder: Path, copy: Path, layers: int = 1) -> Path:
    """``folder``'s model with its first ``layers`` decoder layers in ``copy``: as distilled drafts are made."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    fewer = {"num_decoder_layers" if hasattr(config, "num_decoder_layers") else "decoder_layers": layers}
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, **fewer)
    model.save_pretrained(copy)
    return copy


def with_tokenizer(folder: Path) -> Path:
    """Words w2 to w63 as a tokenizer of SentencePiece's kind, without a post-processor."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    words = {"<pad>": 0, "</s>": 1, **{f"▁w{i}": i for i in range(2, V)}}
    core = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    core.add_special_tokens(["<pad>", "</s>"])
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder
