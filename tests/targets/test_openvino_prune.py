"""A model with a few of its layers, written as a model of its own: the same logits, fewer layers, fit for all."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sooner.errors import UnsupportedModel
from sooner.store import ModelFiles, resolve
from sooner.store.folder import SETTINGS
from sooner.targets.openvino import load
from sooner.targets.openvino.prune import Pruned
from sooner.targets.openvino.weights import read_weights
from sooner.types import Work

TOKENS = np.random.default_rng(0).integers(4, 300, 24).tolist()
KEPT = (0, 3)


def model(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> ModelFiles:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "store"))
    monkeypatch.setenv("SOONER_CACHE", str(folder / "cache"))
    return resolve(str(importlib.import_module("tiny_gguf").write_gguf(folder / "m.gguf", **options)))


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_the_written_model_is_what_was_left_in(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = model(tmp_path, monkeypatch, arch=arch, layers=(3.0,) * 4)
    graph = Pruned(files.xml, KEPT)
    wanted, layers = graph.logits(TOKENS), graph.layers()
    assert np.abs(wanted - Pruned(files.xml, (0, 2)).logits(TOKENS)).max() > 0.1, "layers are of no consequence here"
    out = tmp_path / "out"
    out.mkdir()
    for name in SETTINGS:
        if (files.folder / name).is_file():
            (out / name).write_bytes((files.folder / name).read_bytes())
    norm = read_weights(files.xml).norm
    graph.write(out / "openvino_model.xml", layers, norm)
    scale = np.abs(wanted).max()
    assert np.abs(Pruned(out / "openvino_model.xml", (0, 1)).logits(TOKENS) - wanted).max() < 0.03 * scale  # int8

    target = load(resolve(str(out)), taps=(0, -1), precision="f32", pool_tokens=512)
    assert len(target.kv.tensors) == 2 * len(KEPT)
    session = target.open()
    (rows,) = target.score([Work(session, tuple(TOKENS))])
    assert np.abs(rows.logits[0] - wanted[-1]).max() < 0.1 * scale
    assert rows.hidden is not None
    assert rows.hidden.shape == (1, 2 * files.hidden_size)
    session.close()

    other = Pruned(files.xml, KEPT)
    other.write(tmp_path / "other.xml", [layers[1], layers[0]], 2.0 * norm)
    assert np.abs(Pruned(tmp_path / "other.xml", (0, 1)).logits(TOKENS) - wanted).max() > 0.1 * scale


def test_layers_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = model(tmp_path, monkeypatch)
    with pytest.raises(UnsupportedModel, match="cannot be fitted"):
        Pruned(files.xml, (0, 7))
