"""The conversion road, for real: needs torch and optimum-intel (extra ``convert``)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_gguf import CONTEXT, FFN, HEADS, HIDDEN, KV_HEADS, LAYERS, byte_level_vocabulary, write_gguf

from sooner.errors import UnsupportedModel
from sooner.store import ModelFiles, resolve
from sooner.store.folder import write_settings
from sooner.store.gguf_config import hugging_face_config
from sooner.store.gguf_file import read_gguf
from sooner.store.gguf_tokenizer import tokenizer_json, vocabulary
from sooner.text import Tokenizer

pytestmark = [pytest.mark.convert, pytest.mark.filterwarnings("default")]

IDS: NDArray[np.int64] = np.random.default_rng(0).integers(0, 300, (1, 24))
EIGHT_BIT = 0.1  # what 8-bit weights may change in models as narrow as these, of the mean logit
Rows = NDArray[np.float32]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    # A torchvision built for CUDA does not load beside a CPU build of torch; transformers then works without it.
    monkeypatch.setitem(sys.modules, "torchvision", None)


def run_ir(files: ModelFiles) -> Rows:
    import openvino as ov

    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "KV_CACHE_PRECISION": "f32"}
    model = ov.Core().compile_model(files.xml, "CPU", exact)
    names = {name for port in model.inputs for name in port.names}
    inputs = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "position_ids": np.arange(IDS.size)[None]}
    inputs["beam_idx"] = np.zeros(1, np.int32)
    result = model.create_infer_request().infer({name: value for name, value in inputs.items() if name in names})
    return np.array(next(iter(result.values()))[0])


def run_folder(folder: Path) -> Rows:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return np.array(model(torch.tensor(IDS)).logits.numpy()[0])


def run_expanded(gguf: Path, folder: Path) -> Rows:
    from sooner.store.gguf_weights import write_safetensors

    folder.mkdir()
    read = read_gguf(gguf)
    words = vocabulary(read)
    config = hugging_face_config(read, words) | {"torch_dtype": "float32"}
    write_settings(folder, config, words, tokenizer_json(read, words), None)
    write_safetensors(gguf, folder)
    return run_folder(folder)


def agree(ours: Rows, truth: Rows, tolerance: float) -> bool:
    return bool(np.abs(ours - truth).mean() < tolerance * np.abs(truth).mean())


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
def test_expanded_weights_are_what_openvinos_reader_sees(tmp_path: Path, arch: str, kind: str) -> None:
    # Two readers that know nothing of each other: names, order of the rotary rows and block formats must be right.
    gguf = write_gguf(tmp_path / "m.gguf", arch=arch, kind=kind)
    truth = run_ir(resolve(str(gguf)))
    expanded = run_expanded(gguf, tmp_path / "hf")
    assert agree(expanded, truth, 1e-3)
    # Negative control: another model of the same shape does not agree.
    assert not agree(run_expanded(write_gguf(tmp_path / "o.gguf", arch=arch, seed=1), tmp_path / "other"), truth, 0.5)


@pytest.mark.parametrize(("arch", "kind", "pre"), [("llama", "Q5_0", "smollm"), ("qwen2", "BF16", "qwen2")])
def test_a_gguf_file_the_quick_reader_refuses_is_converted(tmp_path: Path, arch: str, kind: str, pre: str) -> None:
    gguf = write_gguf(tmp_path / "m.gguf", arch=arch, kind=kind, pre=pre, template="{{ messages[0].content }}")
    said: list[str] = []
    files = resolve(str(gguf), progress=said.append)
    assert any(f"{kind} tensors" in line for line in said)
    assert (files.quantisation, files.architecture, files.layers, files.context) == ("int8", arch, LAYERS, CONTEXT)
    assert (files.vocab_size, files.eos_ids, files.chat_template) == (320, (0,), "{{ messages[0].content }}")
    assert agree(run_ir(files), run_expanded(gguf, tmp_path / "hf"), EIGHT_BIT)
    tokenizer = Tokenizer.load(files.folder)
    assert tokenizer.decode(tokenizer.encode("the quick 한국어")) == "the quick 한국어"
    assert resolve(str(gguf), progress=pytest.fail) == files


def hugging_face_folder(folder: Path, arch: str) -> Path:
    import torch
    import transformers

    shape = {"hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "vocab_size": 320}
    shape |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": CONTEXT}
    config_class = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[arch]
    torch.manual_seed(0)
    config = config_class(**shape, bos_token_id=1, eos_token_id=0, initializer_range=0.2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_a_llama_folder_is_converted(tmp_path: Path) -> None:
    folder = hugging_face_folder(tmp_path / "llama", "llama")
    gguf = read_gguf(write_gguf(tmp_path / "m.gguf"))
    words = vocabulary(gguf)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(gguf, words)), encoding="utf-8")
    files = resolve(str(folder))
    assert (files.name, files.quantisation, files.architecture, files.eos_ids) == ("llama", "int8", "llama", (0,))
    truth = run_folder(folder)
    assert agree(run_ir(files), truth, EIGHT_BIT)
    assert not agree(np.roll(truth, 1, axis=0), truth, EIGHT_BIT)
    assert Tokenizer.load(files.folder).eos_ids == {0}
    assert resolve(str(folder), progress=pytest.fail) == files


def test_a_qwen2_folder_without_a_tokenizer_json_is_converted(tmp_path: Path) -> None:
    folder = hugging_face_folder(tmp_path / "qwen2", "qwen2")
    tokens, merges, _ = byte_level_vocabulary()
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), encoding="utf-8")
    settings: dict[str, Any] = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": tokens[0], "unk_token": tokens[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"pad_token": tokens[0]}), encoding="utf-8")
    files = resolve(str(folder))
    assert agree(run_ir(files), run_folder(folder), EIGHT_BIT)
    tokenizer = Tokenizer.load(files.folder)
    assert tokenizer.decode(tokenizer.encode("the quick 한국어 12")) == "the quick 한국어 12"


def test_llama3_frequencies_are_recognised(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    from sooner.store.gguf_weights import llama3_scaling

    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_theta": 500_000.0}
    config = LlamaConfig(
        hidden_size=2048, num_attention_heads=32, rope_parameters=scaling, max_position_embeddings=131_072
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / 500_000.0 ** (np.arange(0, 64, 2) / 64)
    factors = plain / scaled.double().numpy()
    assert llama3_scaling(factors, 500_000.0) == {k: v for k, v in scaling.items() if k != "rope_theta"}
    with pytest.raises(ValueError, match="does not know"):
        llama3_scaling(factors * np.linspace(1, 1.1, 32), 500_000.0)
    with pytest.raises(UnsupportedModel, match="does not know"):
        resolve(str(write_gguf(tmp_path / "odd.gguf", rope_freqs=[1.0] * 8 + [3.0] * 8)))
