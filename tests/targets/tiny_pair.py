"""Tiny encoder-decoder models as Hugging Face folders, copies of them with fewer decoder layers, and words for them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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

    kind, special = PAIRS[family]
    torch.manual_seed(seed)
    shape = {"d_model": 32, "vocab_size": V, "pad_token_id": 0, "eos_token_id": END, "decoder_start_token_id": 0}
    config = getattr(transformers, kind)(**{**shape, **special, **more})
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # drawn by name: versions of transformers draw in other orders
            if parameter.ndim > 1 and parameter.requires_grad:
                drawn = torch.Generator().manual_seed(11 + seed + zlib.crc32(name.encode()))  # 11: near its pruned copy
                parameter.normal_(0.0, 0.3, generator=drawn)
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


STEPS = (5, 11)
"""How far apart the words of a text are in the two languages that trained models know."""


def train_pair(folder: Path, draft: Path) -> None:
    """A T5 in ``folder`` that counts on from the second word of its source in the language that the first names, and
    in ``draft`` a copy with one decoder layer over the same encoder, which has practised the first language alone."""
    import torch
    import transformers

    shape: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_decoder_layers": 2}
    ids = {"vocab_size": V, "pad_token_id": 0, "eos_token_id": END, "decoder_start_token_id": 0}
    torch.manual_seed(0)
    config = transformers.T5Config(**shape, **ids, num_heads=4, dropout_rate=0.0, n_positions=CONTEXT)
    model = transformers.T5ForConditionalGeneration(config)
    _train(model, 80, STEPS)
    model.save_pretrained(folder)
    small = transformers.T5ForConditionalGeneration.from_pretrained(folder, num_decoder_layers=1)
    for parameter in small.get_encoder().parameters():
        parameter.requires_grad_(False)
    _train(small, 20, STEPS[:1])
    small.save_pretrained(draft)


def _train(model: Any, times: int, steps: Sequence[int]) -> None:
    import torch

    rng = np.random.default_rng(1)
    optimiser = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    for _ in range(times):
        language, first = rng.integers(0, len(steps), 32), rng.integers(0, V - 4, 32)
        source = np.stack([2 + language, 4 + first, np.full(32, END)], 1)
        text = 4 + (first[:, None] + np.array(steps)[language, None] * np.arange(16)) % (V - 4)
        loss = model.train()(input_ids=torch.tensor(source), labels=torch.tensor(text)).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()


def mix_sources(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every text of a pass reads the first one's source."""
    runner = target._runner
    attending = runner.attending

    def mixed(passed: Any) -> Any:
        runner.sources = dict.fromkeys(runner.sources, next(iter(runner.sources.values()), runner.spare))
        return attending(passed)

    monkeypatch.setattr(runner, "attending", mixed)
