"""A tiny model that can be fitted to in a moment, prompts for it, and a fit of so many batches."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from sooner.store import ModelFiles, resolve
from sooner.train.make import Recipe
from sooner.train.workshop import Workshop

PROMPTS: list[tuple[Any, str]] = [(f"the {word} fox number {i}", "") for i in range(20) for word in ("quick", "brown")]


def tiny_model(folder: Path, **options: Any) -> ModelFiles:
    """A model of random weights in ``folder``, imported into a cache there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "store"))
        patch.setenv("SOONER_CACHE", str(folder / "cache"))
        write_gguf = importlib.import_module("tiny_gguf").write_gguf
        return resolve(str(write_gguf(folder / "tiny.gguf", **{"tied": False, **options})))


def recipe(files: ModelFiles, **more: Any) -> Recipe:
    given: dict[str, Any] = {"prompts": "p", "tokens": 3000, "max_tokens": 40, "temperature": 0.7, "seed": 3}
    return Recipe(**{**given, "model": files.sha256, "sooner": "0", **more})


def run(fit: Any, shop: Workshop, batches: int) -> Any:
    """``fit`` after so many batches in all."""
    for _ in fit.run([shop.rows]):
        if fit.batches == batches:
            return fit
    raise AssertionError
