"""Two small models of one vocabulary, trained apart from each other on the same text, as files for `draft_pairs.py`.

    python benchmarks/small_pair.py FOLDER [--minutes 4]

    python benchmarks/draft_pairs.py FOLDER/draft.gguf --model FOLDER/target.gguf --prompts FOLDER/prompts.txt
        --ignore-eos --chains 1 2 4 --temperature 0 0.8 --tokens 96

The text is the language reference that comes with Python. Needs the extra `train`; goes by the processor's time, one
thread, and a second call with the same folder does nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from sooner.targets.openvino.weights import LayerWeights
from sooner.train.pruned import DecoderLayer, PrunedShape, causal

VOCABULARY = 1024
END = "<|end|>"
LENGTH, BATCH = 128, 2
HEAD = 64
CONTEXT = 1024

SIZES = {"target": (384, 10, 0.85), "draft": (192, 2, 0.15)}
"""Hidden size, layers, and the share of the time for each."""


def text() -> list[str]:
    """Paragraphs of English."""
    parts = [" ".join(part.split()) for name in sorted(topics) for part in topics[name].split("\n\n")]
    return [part for part in parts if len(part) > 60]


def learn_tokens(paragraphs: list[str]) -> tokenizers.Tokenizer:
    """A byte-level BPE; token 0 ends a paragraph."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(paragraphs, trainer)
    return core


class Small(nn.Module):
    """A llama of ``layers`` layers with tied embedding, from scratch."""

    def __init__(self, size: int, layers: int, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        inner, wide = size, -(-size * 8 // 3 // 32) * 32

        def matrix(rows: int, columns: int, gain: float = 1.0) -> Any:
            return (rng.standard_normal((rows, columns)) * gain * columns**-0.5).astype(np.float32)

        heads = size // HEAD
        self.shape = PrunedShape(tuple(range(layers)), heads, heads, HEAD, 1e4, 1e-5)
        self.embedding = nn.Parameter(torch.from_numpy(matrix(VOCABULARY, size)))
        self.norm = nn.RMSNorm(size, eps=1e-5)
        least = (2 * layers) ** -0.5
        ones = np.ones(size, np.float32)
        self.layers = nn.ModuleList(
            DecoderLayer(
                LayerWeights(
                    q=matrix(inner, size),
                    k=matrix(inner, size),
                    v=matrix(inner, size),
                    o=matrix(size, inner, least),
                    gate=matrix(wide, size),
                    up=matrix(wide, size),
                    down=matrix(size, wide, least),
                    attention_norm=ones,
                    mlp_norm=ones,
                ),
                self.shape,
            )
            for _ in range(layers)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        angles, mask = causal(tokens, self.shape)
        x = self.embedding[tokens] * VOCABULARY**0.5 * 0.05
        for layer in self.layers:
            x = layer(x, angles, mask)
        return functional.linear(self.norm(x), self.embedding)


def train(model: Small, ids: Tensor, seconds: float, seed: int) -> float:
    """Fit ``model`` to windows of ``ids`` for so many seconds of the processor; returns the last loss."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
    chance = torch.Generator().manual_seed(seed)
    begun, mean, told = time.process_time(), 0.0, 0.0
    batches = 0
    while (share := (time.process_time() - begun) / seconds) < 1.0:
        optimiser.param_groups[0]["lr"] = 2e-3 * min(1.0, (batches + 1) / 50, 2.0 * (1.02 - share))
        starts = torch.randint(len(ids) - LENGTH - 1, (BATCH,), generator=chance).tolist()
        windows = torch.stack([ids[at : at + LENGTH + 1] for at in starts])
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(windows[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        batches += 1
        now = float(loss.detach())
        mean = 0.95 * mean + 0.05 * now if mean else now
        if share - told > 0.1:
            told = share
            print(f"{share:.0%}: {batches * BATCH * LENGTH:,} tokens, loss {mean:.3f}", flush=True)
    return mean


def write(model: Small, core: tokenizers.Tokenizer, path: Path) -> None:
    """As a GGUF file in Q8_0."""
    size, heads = model.embedding.shape[1], model.shape.heads
    document = json.loads(core.to_str())["model"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(size)
    writer.add_block_count(len(model.layers))
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(model.shape.eps)
    writer.add_rope_freq_base(model.shape.rope_theta)
    writer.add_rope_dimension_count(HEAD)
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q8_0))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = sorted(document["vocab"], key=document["vocab"].get)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in document["merges"]])
    writer.add_add_bos_token(False)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)

    def add(name: str, values: Any) -> None:
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def interleaved(weight: Any) -> Any:
        """Rows of queries and keys in the order in which this format rotates them."""
        return np.ascontiguousarray(weight.reshape(heads, 2, HEAD // 2, size).swapaxes(1, 2).reshape(-1, size))

    layers: Any = model.layers
    for i, layer in enumerate(layers):
        w = layer.exported()
        if i == 0:
            writer.add_feed_forward_length(len(w.gate))
        names = {"attn_q": interleaved(w.q), "attn_k": interleaved(w.k), "attn_v": w.v, "attn_output": w.o}
        names |= {"ffn_gate": w.gate, "ffn_up": w.up, "ffn_down": w.down}
        names |= {"attn_norm": w.attention_norm, "ffn_norm": w.mlp_norm}
        for name, values in names.items():
            add(f"blk.{i}.{name}.weight", values)
    embedding = model.embedding.detach().float().numpy()
    add("token_embd.weight", embedding * np.float32(VOCABULARY**0.5 * 0.05))
    add("output.weight", embedding)
    add("output_norm.weight", model.norm.weight.detach().float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=4.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    paragraphs = text()
    core = learn_tokens(paragraphs)
    ids = torch.tensor([token for part in paragraphs for token in (*core.encode(part).ids, 0)])
    print(f"{len(ids):,} tokens of text")
    openings = [" ".join(part.split()[:8]) for part in paragraphs[:: len(paragraphs) // 24]]
    (options.folder / "prompts.txt").write_text("\n".join(openings), encoding="utf-8")
    for seed, (name, (size, layers, share)) in enumerate(SIZES.items()):
        path = options.folder / f"{name}.gguf"
        if path.exists():
            continue
        model = Small(size, layers, seed)
        loss = train(model, ids, 60.0 * options.minutes * share, seed)
        write(model, core, path)
        print(f"{path}: {sum(p.numel() for p in model.parameters()):,} parameters, loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
