"""A redundant model, most of whose layers add next to nothing: they are found and left out of drafts, work is saved."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sooner.bench.layerskip import Costs, Search
from sooner.bench.shortened import Windows, measure_memory
from sooner.control.fixed import FixedController
from sooner.draft.layerskip import LayerSkipDrafter
from sooner.engine import Engine
from sooner.store import ModelFiles, resolve
from sooner.targets.openvino import load
from sooner.targets.openvino.borrow import Borrower
from sooner.text import Tokenizer
from sooner.types import Rows, Work

FAINT = 20
LAYERS = (1.0, 1.0, *[0.02] * FAINT, 1.0, 1.0)
COSTS = Costs(whole=0.95, attention=0.95 / 50, mlp=0.95 / 50, least=0.03, verify=tuple(1 + 0.02 * k for k in range(9)))
"""What passes cost on a quiet machine, so that the test does not depend on this one's mood."""

PROMPTS = [np.random.default_rng(i).integers(2, 300, 20).tolist() for i in range(6)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFiles:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "store"))
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    return resolve(str(importlib.import_module("tiny_gguf").write_gguf(tmp_path / "deep.gguf", layers=LAYERS)))


def test_a_redundant_model_drafts_for_itself(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    target = load(files)
    engine = Engine(target, Tokenizer.load(files.folder), controller=FixedController(6))
    plain = [engine.generate(prompt, max_tokens=72, ignore_eos=True) for prompt in PROMPTS]
    texts = [([*prompt, *answer.token_ids], len(prompt)) for prompt, answer in zip(PROMPTS, plain, strict=True)]
    windows = Windows(target, texts)
    with windows.opened():
        search = Search(windows.names, windows.agree, COSTS)
        list(search.run(1e9))
        found = search.found()
    assert target.pool.held == 0
    faint = {f"{layer}{half}" for layer in range(2, 2 + FAINT) for half in "am"}
    assert len(found.skip & faint) > len(faint) / 2
    assert found.agreement > 0.8
    assert found.speed_up > 1.3
    memory = measure_memory(target, found.skip)
    assert memory is None or memory < 64 << 20

    passes: list[int] = []
    score = Borrower.score

    def counted(short: Borrower, works: Sequence[Work]) -> list[Rows]:
        passes.append(1)
        return score(short, works)

    monkeypatch.setattr(Borrower, "score", counted)
    engine.drafter = LayerSkipDrafter(target, skip=found.text, max=6, thrifty=False)
    passes.clear()
    drafted = [engine.generate(prompt, max_tokens=72, ignore_eos=True) for prompt in PROMPTS]
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    whole, left = len(windows.names), len(windows.names) - len(found.skip)
    before = sum(answer.speculation.steps for answer in plain) * whole
    after = sum(answer.speculation.steps for answer in drafted) * whole + len(passes) * left
    assert before > 1.3 * after, "sublayers computed, those of drafts included"
