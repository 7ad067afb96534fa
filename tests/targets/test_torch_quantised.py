"""Quantised models, where bitsandbytes or torchao is installed: rows are those of transformers' own quantised model."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_torch import V, build, open_target

from sooner.errors import InvalidRequest
from sooner.types import Work

pytestmark = [
    pytest.mark.convert,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # among these packages
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

TOKENS = tuple(np.random.default_rng(0).integers(0, V, 40).tolist())


def installed(name: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec(name) is not None and importlib.util.find_spec("accelerate") is not None
    return pytest.mark.skipif(not there, reason=f"{name} or accelerate is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for blocks of 64 weights."""
    shape = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    return build("llama", tmp_path_factory.mktemp("models") / "llama", **shape)


def rows(target: Any) -> Any:
    """After a prefill, by a pass each."""
    session = target.open()
    target.score([Work(session, TOKENS[:8], logits=False)])
    return np.concatenate([target.score([Work(session, (token,))])[0].logits for token in TOKENS[8:]])


def transformers_own(folder: Path, config: Any = None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    given = {"quantization_config": config, "device_map": {"": "cpu"}} if config is not None else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **given).eval()
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0, 8:].float().numpy()


def like(ours: Any, theirs: Any, plain: Any) -> bool:
    """Scored in passes of other widths, in arithmetic of eight bits: not the same numbers, but far nearer than those of
    the model that is not quantised."""
    return float(np.abs(ours - theirs).mean()) < 0.5 * float(np.abs(plain - theirs).mean())


@installed("bitsandbytes")
@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_bitsandbytes_on_the_processor(folder: Path, bits: str) -> None:
    from transformers import BitsAndBytesConfig

    theirs = transformers_own(folder, BitsAndBytesConfig(**{f"load_in_{bits}": True}))
    target = open_target(folder, quantization=bits)
    plain = transformers_own(folder)
    assert like(rows(target), theirs, plain)
    assert not like(rows(open_target(folder)), theirs, plain)  # negative control
    assert target.fingerprint["quantization"] == bits


def int8() -> Any:
    from transformers import TorchAoConfig

    return TorchAoConfig(importlib.import_module("torchao.quantization").Int8WeightOnlyConfig())


@installed("torchao")
def test_a_configuration_of_torchao(folder: Path) -> None:
    target = open_target(folder, quantization=int8())
    theirs, plain = transformers_own(folder, int8()), transformers_own(folder)
    assert like(rows(target), theirs, plain)
    assert not like(rows(open_target(folder)), theirs, plain)  # negative control
    assert "TorchAo" in target.fingerprint["quantization"]


@installed("torchao")
def test_a_folder_that_torchao_quantised(folder: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    given = {"quantization_config": int8(), "device_map": {"": "cpu"}}
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **given).save_pretrained(tmp_path)
    target = open_target(tmp_path)
    assert like(rows(target), rows(open_target(folder, quantization=int8())), rows(open_target(folder)))
    assert target.fingerprint["quantization"] == "the model's own"


def test_other_words_are_refused(folder: Path) -> None:
    for given in ("2bit", {"load_in_4bit": True}):
        with pytest.raises(InvalidRequest, match="4bit, 8bit or a configuration object"):
            open_target(folder, quantization=given)
