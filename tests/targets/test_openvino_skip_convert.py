"""Sublayers left out of what optimum-intel exports: the other road to a graph (extra ``convert``)."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from sooner import tree
from sooner.store import resolve
from sooner.targets.openvino import load
from sooner.types import Logits, Work

pytestmark = [pytest.mark.convert, pytest.mark.filterwarnings("default")]

LAYERS, IDENTITY = 4, 2
TEXT: list[int] = np.random.default_rng(0).integers(2, 300, 50).tolist()


def exported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A llama folder, one layer of which adds nothing, for the store to convert."""
    monkeypatch.setenv("SOONER_CACHE", str(folder / "cache"))
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "store"))
    tiny = importlib.import_module("tiny_gguf")
    import torch
    import transformers

    from sooner.store.gguf_file import read_gguf
    from sooner.store.gguf_tokenizer import tokenizer_json, vocabulary

    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS, "vocab_size": 320}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
    config = transformers.LlamaConfig(**shape, bos_token_id=1, eos_token_id=0, initializer_range=0.2)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.model.layers[IDENTITY].self_attn.o_proj.weight.zero_()
        model.model.layers[IDENTITY].mlp.down_proj.weight.zero_()
    path = folder / "llama"
    model.save_pretrained(path)
    gguf = read_gguf(tiny.write_gguf(folder / "m.gguf"))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer_json(gguf, vocabulary(gguf))), encoding="utf-8")
    return str(path)


def test_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = load(resolve(exported(tmp_path, monkeypatch)))
    assert target.gated().names == tuple(f"{layer}{half}" for layer in range(LAYERS) for half in "am")
    session = target.open()
    target.score([Work(session, tuple(TEXT[:30]), logits=False)])
    session.settle(())
    draft = tree.chain(TEXT[31:], 1.0, "test")

    def rows(*names: str) -> Logits:
        short = target.skipping(names)
        found = short.score([Work(short.open(TEXT[:30]), (TEXT[30],), draft)])[0].logits.copy()
        short.release()
        return found

    want = target.score([Work(session, (TEXT[30],), draft)])[0].logits.copy()
    session.settle(())
    session.sync(TEXT[:30])
    for names in ((), (f"{IDENTITY}a",), (f"{IDENTITY}a", f"{IDENTITY}m")):
        assert np.array_equal(rows(*names), want), f"leaving out {names}"
    assert not np.array_equal(rows("1m"), want)
    session.close()
    assert target.pool.held == 0
