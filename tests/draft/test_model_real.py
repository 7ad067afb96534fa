"""Draft models on the real default model: the self drafter by the road of a draft model, and a foreign vocabulary."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sooner
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.errors import UnsupportedModel
from sooner.loading import make_drafter, open_model
from sooner.store.default import DEFAULT_NAME
from test_engine_laws import visible

PROMPTS = ["Why is the sky blue?", "Count from one to twenty in words."]
OPTIONS: dict[str, Any] = {"max_tokens": 40, "seed": 11, "logprobs": 1, "ignore_eos": True}
Plain = dict[float, list[sooner.Completion]]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return sooner.load(draft=None, budget=4, pool_tokens=4096)


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Plain:
    return {t: engine.generate_many(PROMPTS, temperature=t, **OPTIONS) for t in (0.0, 0.8)}


@pytest.fixture(autouse=True)
def _restore(engine: Engine) -> Iterator[None]:
    yield
    engine.drafter = None
    assert not engine.busy


def use(engine: Engine, spec: str) -> list[str]:
    """Let ``spec`` draft; returns what was said while it was loaded."""
    said: list[str] = []
    opening = lambda path: open_model(path, progress=said.append)  # noqa: E731 - a partial would hide its one argument
    engine.drafter = make_drafter(spec, engine.target, engine.codec, "", opening=opening, say=said.append)
    engine.controller = FixedController(4)
    return said


def test_a_second_copy_of_the_model_is_always_accepted(engine: Engine, plain: Plain) -> None:
    said = use(engine, f"kind=model,path={DEFAULT_NAME},max=4,width=1,thrifty=no")
    assert any(line.startswith("draft model: memory: ") for line in said)
    assert "the target's vocabulary; context 8192 of the target's" in said[-1]
    for temperature, want in plain.items():
        got = engine.generate_many(PROMPTS, temperature=temperature, **OPTIONS)
        assert [visible(c) for c in got] == [visible(c) for c in want]
        for c in got:
            assert c.speculation.accepted == c.speculation.drafted
            assert c.speculation.acceptance_length > 4


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a small model with a vocabulary of its own; its import goes to a cache of its own."""
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "store"))
    write_gguf = importlib.import_module("tiny_gguf").write_gguf
    return lambda **options: write_gguf(tmp_path / "tiny.gguf", **options)


@pytest.mark.parametrize("sentence_piece", [False, True])
def test_a_small_model_with_another_vocabulary(engine: Engine, plain: Plain, tiny: Any, sentence_piece: bool) -> None:
    path = tiny(sentence_piece=sentence_piece)
    said = use(engine, f"kind=model,path={path},max=3,thrifty=no")
    assert "another vocabulary, different from token 0 on" in said[-1]
    assert "context 256 of the target's 4096 tokens" in said[-1]
    for temperature, want in plain.items():
        got = engine.generate_many(PROMPTS, temperature=temperature, **OPTIONS)
        assert [visible(c) for c in got] == [visible(c) for c in want]
        assert all(c.speculation.drafted > 10 for c in got)
    assert engine.warning is None


def test_what_cannot_work_is_refused_at_load(tiny: Any) -> None:
    path = tiny(extra={"llama.attention.sliding_window": 64})
    with pytest.raises(UnsupportedModel, match=r"draft model: .* sliding window of 64 tokens"):
        open_model(str(path))
