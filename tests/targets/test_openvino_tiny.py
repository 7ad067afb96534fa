"""Small llama and qwen2 models with random weights: imported, loaded, invariant, tapped."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from fake_passes import chain, tree

from sooner.store import ModelFiles, resolve
from sooner.targets.openvino import OpenVINOTarget, load
from sooner.types import ROOT, Work


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "store"))
        patch.setenv("SOONER_CACHE", str(folder / "cache"))
        write_gguf = importlib.import_module("tiny_gguf").write_gguf
        pre = {"llama": "smollm", "qwen2": "qwen2"}[request.param]
        return resolve(str(write_gguf(folder / f"{request.param}.gguf", arch=request.param, pre=pre)))


@pytest.fixture(scope="module")
def small(files: ModelFiles) -> OpenVINOTarget:
    return load(files, taps=(-1,))


def test_loads_with_a_plan_and_invariant_rows(small: OpenVINOTarget, files: ModelFiles) -> None:
    assert small.vocab_size == files.vocab_size
    assert small.context == files.context
    assert small.row_invariant


def test_a_sibling_and_a_chain_have_the_same_rows(small: OpenVINOTarget, files: ModelFiles) -> None:
    text = np.random.default_rng(0).integers(0, files.vocab_size, 45).tolist()
    session = small.open()
    small.score([Work(session, tuple(text[:40]), logits=False)])
    draft = tree([7, *text[41:]], [ROOT, ROOT, 1, 2, 3])
    rows = small.score([Work(session, (text[40],), draft)])[0]
    branch = rows.logits[[0, 2, 3, 4, 5]].copy()
    assert rows.hidden is not None
    hidden = rows.hidden[[0, 2, 3, 4, 5]].copy()
    assert hidden.shape[1] == files.hidden_size
    session.close()
    small.pool.purge()
    session = small.open()
    alone = small.score([Work(session, tuple(text[:41]), chain(text[41:]))])[0]
    assert alone.hidden is not None
    assert np.array_equal(alone.logits, branch)
    assert np.array_equal(alone.hidden, hidden)
    session.close()
    assert small.pool.held == 0
