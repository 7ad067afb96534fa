"""Tiny GGUF models for tests: random weights, a real byte-level or SentencePiece vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

CORPUS = ["the quick brown fox jumps over the lazy dog and the other one, isn't it? 1234 한국어 문장"] * 3
HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, CONTEXT = 64, 2, 1, 128, 2, 256
VOCABULARY = 320
HEAD_SIZE = HIDDEN // HEADS
END = "<|im_end|>"
_FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "BF16": 32}


def byte_level_vocabulary(size: int = VOCABULARY) -> tuple[list[str], list[str], list[int]]:
    """Tokens, merges and token types of a small byte-level BPE; token 0 ends a text."""
    trainer_tokenizer = Tokenizer(models.BPE())
    trainer_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - 16,
        special_tokens=[END, "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trainer_tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(trainer_tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    padding = [f"<|extra_{i}|>" for i in range(size - len(tokens))]
    return tokens + padding, merges, [3, 3] + [1] * (len(tokens) - 2) + [3] * len(padding)


def write_gguf(
    path: Path,
    *,
    arch: str = "llama",
    kind: str = "Q8_0",
    pre: str | None = "smollm",
    tied: bool = False,
    sentence_piece: bool = False,
    rope_freqs: Sequence[float] | None = None,
    template: str | None = None,
    extra: dict[str, Any] | None = None,
    seed: int = 0,
    layers: Sequence[float] = (1.0,) * LAYERS,
) -> Path:
    """Write a model of two layers; ``extra`` adds metadata keys (bool, int, float or str).

    ``layers``: one number per layer, by which what it adds to the residual stream is scaled; 0 makes it an identity.
    """
    tokens, merges, types = byte_level_vocabulary()
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(len(layers))
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_file_type(_FILE_TYPES[kind])
    if sentence_piece:
        _add_sentence_piece(writer)
    else:
        writer.add_tokenizer_model("gpt2")
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(merges)
        writer.add_add_bos_token(False)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (extra or {}).items():
        _add_value(writer, key, value)
    _add_weights(writer, arch, kind, len(tokens), layers, tied=tied, seed=seed)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_freqs, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sentence_piece(writer: gguf.GGUFWriter) -> None:
    tokens, scores, types = sentence_piece_tokens()
    missing = VOCABULARY - len(tokens)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens + [f"<unused{i}>" for i in range(missing)])
    writer.add_token_scores(scores + [-1e4] * missing)
    writer.add_token_types(types + [5] * missing)
    writer.add_unk_token_id(0)


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _add_weights(
    writer: gguf.GGUFWriter, arch: str, kind: str, vocab: int, layers: Sequence[float], *, tied: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)

    def matrix(name: str, rows: int, columns: int, scale: float = 0.1) -> None:
        values = (rng.standard_normal((rows, columns)) * scale).astype(np.float32)
        if kind in ("F32", "F16"):
            writer.add_tensor(name, values.astype(np.float16 if kind == "F16" else np.float32))
        else:
            quantised = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quants.quantize(values, quantised), raw_dtype=quantised)

    def vector(name: str, length: int, centre: float) -> None:
        writer.add_tensor(name, (centre + 0.1 * rng.standard_normal(length)).astype(np.float32))

    matrix("token_embd.weight", vocab, HIDDEN, 1.0)
    for layer, part in enumerate(layers):
        block = f"blk.{layer}."
        vector(block + "attn_norm.weight", HIDDEN, 1.0)
        vector(block + "ffn_norm.weight", HIDDEN, 1.0)
        for name, rows in (("q", HIDDEN), ("k", KV_HEADS * HEAD_SIZE), ("v", KV_HEADS * HEAD_SIZE)):
            matrix(f"{block}attn_{name}.weight", rows, HIDDEN)
            if arch == "qwen2":
                vector(f"{block}attn_{name}.bias", rows, 0.0)
        if arch == "qwen3":
            vector(block + "attn_q_norm.weight", HEAD_SIZE, 1.0)
            vector(block + "attn_k_norm.weight", HEAD_SIZE, 1.0)
        matrix(block + "attn_output.weight", HIDDEN, HIDDEN, 0.1 * part)
        matrix(block + "ffn_gate.weight", FFN, HIDDEN)
        matrix(block + "ffn_up.weight", FFN, HIDDEN)
        matrix(block + "ffn_down.weight", HIDDEN, FFN, 0.1 * part)
    vector("output_norm.weight", HIDDEN, 1.0)
    if not tied:
        matrix("output.weight", vocab, HIDDEN, 1.0)


def sentence_piece_tokens() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a small SentencePiece vocabulary with byte fallback."""
    control = ["<unk>", "<s>", "</s>"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁t", "he", "▁the", "in", "an", "▁a", "er", "on", "▁an", "▁in", "▁qu", "ick", "▁quick", "▁▁", "▁▁▁▁", "th"]
    words += ["ic", "qu", "한국", "▁the▁"]
    letters = sorted({c for word in words for c in word} | set("abcdefghijklmnopqrstuvwxyz▁.,!한국어"))
    tokens = control + raw + words + letters
    scores = [0.0] * (len(control) + len(raw)) + [-float(i) for i in range(len(words) + len(letters))]
    types = [2, 3, 3] + [6] * len(raw) + [1] * (len(words) + len(letters))
    return tokens, scores, types
