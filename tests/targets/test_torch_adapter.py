"""LoRA adapters: what is refused without peft, and, where peft is installed, that the text is its merged model's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_torch import V, build, open_target

from sooner.errors import CorruptModel, ModelNotFound, SoonerError, UnsupportedModel
from sooner.targets.torch.adapter import adapter_name
from sooner.types import Work

pytestmark = pytest.mark.convert

PEFT = importlib.util.find_spec("peft") is not None
with_peft = pytest.mark.skipif(not PEFT, reason="peft is not installed")
pefts_own = pytest.mark.filterwarnings("ignore::FutureWarning")  # it calls what transformers gives up


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("llama", tmp_path_factory.mktemp("models") / "llama")


def refused(kind: type[SoonerError], words: str, folder: Path, adapter: Path) -> None:
    with pytest.raises(kind, match=words) as caught:
        open_target(folder, adapter=str(adapter))
    assert "\n" not in str(caught.value)


def test_folders_that_are_no_lora_adapter_are_refused(llama: Path, tmp_path: Path) -> None:
    refused(ModelNotFound, r"has no adapter_config\.json", llama, tmp_path)
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps({"peft_type": "PROMPT_TUNING"}))
    refused(CorruptModel, "has no weights", llama, tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    refused(UnsupportedModel, "is a PROMPT_TUNING adapter", llama, tmp_path)
    for damaged in ("{", "[]"):
        config.write_text(damaged)
        refused(CorruptModel, "cannot be read", llama, tmp_path)
    config.write_text(json.dumps({"peft_type": "LORA"}))
    refused(UnsupportedModel, "does not fit the model" if PEFT else "pip install peft", llama, tmp_path)


def lora(base: Path, folder: Path, **more: Any) -> Path:
    """An adapter of ``base`` that changes much."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **more})
    wrapped = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.2)
    wrapped.save_pretrained(folder)
    return folder


def rows(target: Any, tokens: tuple[int, ...]) -> Any:
    session = target.open()
    return np.concatenate(
        [target.score([Work(session, tokens[:8])])[0].logits]
        + [target.score([Work(session, (token,))])[0].logits for token in tokens[8:]]
    )


@with_peft
@pefts_own
@pytest.mark.parametrize("more", [{}, {"use_dora": True}, {"target_modules": ["q_proj", "v_proj"], "use_rslora": True}])
def test_rows_are_those_of_pefts_merged_model(llama: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    folder = lora(llama, tmp_path / "lora", **more)
    tokens = tuple(np.random.default_rng(0).integers(0, V, 20).tolist())
    base = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    merged = peft.PeftModel.from_pretrained(base, str(folder)).merge_and_unload().eval()
    with torch.inference_mode():
        want = merged(torch.tensor([tokens])).logits[0, 7:].numpy()
    target = open_target(llama, adapter=str(folder))
    assert target.row_invariant
    assert np.allclose(rows(target, tokens), want, atol=1e-3)
    plain = open_target(llama)
    assert not np.allclose(rows(plain, tokens), want, atol=0.1)  # negative control
    assert (
        target.fingerprint["adapter"]
        != open_target(llama, adapter=str(lora(llama, tmp_path / "b", r=2))).fingerprint["adapter"]
    )


@with_peft
@pefts_own
def test_adapters_of_other_models_are_refused(llama: Path, tmp_path: Path) -> None:
    """peft alone would run those of a model with more layers or fewer, and leave out what does not fit."""
    for name, more in (
        ("wider", {"hidden_size": 48}),
        ("deeper", {"num_hidden_layers": 4}),
        ("flatter", {"num_hidden_layers": 2}),
    ):
        other = lora(
            build("llama", tmp_path / name, **more), tmp_path / f"{name}-lora", target_modules=["q_proj", "up_proj"]
        )
        refused(UnsupportedModel, "does not fit the model", llama, other)


def test_the_same_weights_applied_otherwise_have_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sooner.targets.torch.adapter.find_spec", lambda name: object())
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    names = []
    for alpha in (8, 16, 8):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": alpha}))
        names.append(adapter_name(str(tmp_path)))
    assert names[0] == names[2] != names[1]
