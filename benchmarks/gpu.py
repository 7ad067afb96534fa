"""The torch target on a GPU: large models with random weights, drafts of a dialled-in acceptance, one table.

    python benchmarks/gpu.py            unattended, under eight minutes, no network; needs torch and transformers
    python benchmarks/gpu.py --small    the same on the processor with a tiny model, to see that it runs

For each model and way of running passes: whether a row is the same bits however it is scored, tokens per second
without drafts, and with drafts of which a given share is right, for one text and for a batch; and whether the drafted
text is the plain one. Writes benchmarks/results/gpu.json.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from common import keep

from sooner.control.fixed import FixedController
from sooner.draft.oracle import OracleDrafter
from sooner.engine import Engine
from sooner.text import Detokenizer

LIMIT_S = 7.5 * 60
"""Cells that would begin later are left out, and the table says so."""

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
}
WAYS: dict[str, dict[str, Any]] = {"free": {}, "compiled": {"compile": True}, "strict": {"strict": True}}


class NoText:
    """A tokenizer for models that have no language."""

    eos_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        return [1]

    def decode(self, ids: Any) -> str:
        return ""

    def token_bytes(self, id: int) -> bytes:
        return b""

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.token_bytes)


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table. ``accuracy``: the share of drafted tokens that are right; ``ratio`` is over plain."""

    model: str
    way: str
    invariant: bool
    texts: int
    budget: int
    accuracy: float
    tokens_per_second: float
    ratio: float
    acceptance_length: float
    same_text: str
    own_ms: float


def model_of(size: str, device: str, seed: int = 0) -> Any:
    """A Llama of ``size`` with random weights, wide enough that its texts are not one token for ever."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = SIZES[size]
    heads = max(1, shape["num_attention_heads"] // 4)
    vocab = 512 if size == "tiny" else 32_000
    config = LlamaConfig(**shape, num_key_value_heads=heads, vocab_size=vocab, max_position_embeddings=4096)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        torch.set_default_dtype(dtype)
        try:
            model = LlamaForCausalLM(config)
        finally:
            torch.set_default_dtype(torch.float32)
    return model.eval()


def target_of(size: str, device: str, way: str, texts: int, context: int) -> Any:
    import torch

    from sooner.targets.torch.adopt import adopt
    from sooner.targets.torch.memory import plan_memory

    model = model_of(size, device)
    shape = SIZES[size]
    width = shape["hidden_size"] // shape["num_attention_heads"] * max(1, shape["num_attention_heads"] // 4)
    item = next(model.parameters()).element_size()
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 4 << 30
    plan = plan_memory(
        device=device,
        available=free,
        weights=0,
        token_bytes=shape["num_hidden_layers"] * width * 2 * item,
        context=context,
        limit=None,
        slots=texts,
    )
    return adopt(model, plan, name=f"random {size}", pack=True, **WAYS[way])


def timed(engine: Engine, prompts: Sequence[list[int]], most: int) -> tuple[float, list[Any], float]:
    """Seconds and answers; and the milliseconds of a step outside scoring."""
    begin = time.perf_counter()
    handles = [engine.submit(engine.request(list(p), temperature=0.0, max_tokens=most, seed=1)) for p in prompts]
    for handle in handles:
        list(engine.follow(handle))
    spent = time.perf_counter() - begin
    steps = [step for handle in handles for step in handle.steps]
    own = float(np.median([s.draft_ms + s.verify_ms + s.overhead_ms for s in steps]))
    return spent, [engine.completion(handle) for handle in handles], own


def cells(size: str, device: str, way: str, *, most: int, batch: int, until: float) -> list[Cell]:
    found: list[Cell] = []
    target = target_of(size, device, way, batch, 1024)
    rng = np.random.default_rng(0)
    for texts in (1, batch):
        prompts = [rng.integers(2, target.vocab_size, 64).tolist() for _ in range(texts)]
        engine = Engine(target, NoText(target.vocab_size), max_running=texts)
        timed(engine, prompts, 8)
        plain, want, own = timed(engine, prompts, most)
        rate = texts * most / plain
        base = (size, way, target.row_invariant, texts)
        found.append(Cell(*base, 0, 0.0, rate, 1.0, 1.0, "the plain text", own))
        truth = {tuple(p): c.token_ids for p, c in zip(prompts, want, strict=True)}
        for budget, accuracy in ((4, 0.6), (4, 0.9), (8, 0.9)):
            if time.perf_counter() > until:
                break
            engine.drafter = OracleDrafter(truth, max=budget, rate=1.0 - accuracy)
            engine.controller = FixedController(budget)
            timed(engine, prompts, 8)
            spent, got, own = timed(engine, prompts, most)
            same = sum(a.token_ids == b.token_ids for a, b in zip(want, got, strict=True))
            length = sum(c.speculation.acceptance_length for c in got) / texts
            fast = texts * most / spent
            found.append(Cell(*base, budget, accuracy, fast, fast / rate, length, f"{same} of {texts}", own))
        engine.drafter = None
    return found


def show(found: Sequence[Cell]) -> None:
    head = ("model", "passes", "rows invariant", "texts", "drafted", "right", "tokens/s", "over plain", "length")
    print(*(f"{name:>14}" for name in (*head, "same text", "own ms")))
    for c in found:
        values = (c.model, c.way, "yes" if c.invariant else "no", c.texts, c.budget, f"{c.accuracy:.0%}")
        more = (f"{c.tokens_per_second:.1f}", f"{c.ratio:.2f}x", f"{c.acceptance_length:.2f}", c.same_text)
        print(*(f"{value:>14}" for value in (*values, *more, f"{c.own_ms:.2f}")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tiny model on the processor")
    parser.add_argument("--sizes", nargs="*", default=["1b", "8b"], choices=list(SIZES))
    options = parser.parse_args()
    try:
        import torch
        import transformers  # noqa: F401  # asked for here, so that its absence has one line
    except ImportError:
        print('gpu.py needs pip install "sooner[torch]"; passed over')
        return
    if not options.small and not torch.cuda.is_available():
        print("gpu.py finds no CUDA GPU; passed over (--small runs a tiny model on the processor)")
        return
    device = "cpu" if options.small else "cuda"
    until = time.perf_counter() + LIMIT_S
    found: list[Cell] = []
    left_out: list[str] = []
    ways = [way for way in WAYS if not options.small or way != "compiled"]  # compiling takes longer than all the rest
    for size in ["tiny"] if options.small else options.sizes:
        for way in ways:
            if time.perf_counter() > until:
                left_out.append(f"{size} {way}")
                continue
            most = 24 if options.small else 128
            found += cells(size, device, way, most=most, batch=2 if options.small else 8, until=until)
            gc.collect()  # a model and its port hold each other
            if device == "cuda":
                torch.cuda.empty_cache()
    show(found)
    if left_out:
        print("no time left for:", ", ".join(left_out))
    if not options.small:
        result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cells": [asdict(c) for c in found]}
        print(keep("gpu", {**result, "left_out": left_out}))


if __name__ == "__main__":
    main()
