"""Bad input as a user gives it on the command line (extra ``torch``): exit code 2, one line, reason and remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny_pair import build_pair, with_tokenizer
from tiny_torch import V, build

import sooner
from commandline import Result, invoke

pytestmark = pytest.mark.convert


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``llama`` and ``t5``, whole; ``foreign``, a Llama of which each word has another number."""
    room = tmp_path_factory.mktemp("models")
    with_tokenizer(build("llama", room / "llama"))
    with_tokenizer(build_pair("t5", room / "t5"))
    foreign = with_tokenizer(build("llama", room / "foreign", seed=1)) / "tokenizer.json"
    document = json.loads(foreign.read_text())
    words = document["model"]["vocab"]
    document["model"]["vocab"] = {**words, **{f"▁w{V + 1 - i}": i for i in range(2, V)}}
    foreign.write_text(json.dumps(document))
    return room


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def run(model: Path, *options: str) -> Result:
    options = ("--max-tokens", "4", "-t", "0", "w5 w6 w7", *options)
    return invoke("run", "-m", str(model), "--backend", "torch", *options, load=sooner.load)


def refused(words: str, result: Result) -> None:
    assert (result.code, result.out) == (2, ""), result.err
    lines = result.err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    assert words in lines[-1]
    assert not any("Traceback" in line for line in lines)
    assert all(line.startswith(("error: ", "draft model ")) for line in lines), lines


def configured(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def half(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"no pickle")


def no_numbers(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without("config.json"), "has no config.json; copy it there"),
        (without("model.safetensors"), "has no safetensors; copy them there"),
        (without("tokenizer.json"), "has no tokenizer.json; copy it there"),
        (configured(model_type="nobody"), "does not know the model in"),
        (configured(hidden_size=64), "holds 30 weights of another shape than its config.json says, such as"),
        (configured(num_hidden_layers=4), "lacks 9 of the model's weights, such as model.layers.3"),
        (half, "transformers cannot load"),
        (pickled, "transformers cannot load"),
        (no_numbers, "the model's own rows are no finite numbers in float32"),
    ],
)
def test_folders_that_cannot_be_loaded(room: Path, tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(room / "llama", folder)
    damage(folder)
    refused(words, run(folder))


def test_layers_that_the_configuration_leaves_out_are_told(room: Path, tmp_path: Path) -> None:
    folder = tmp_path / "longer"
    shutil.copytree(room / "llama", folder)
    configured(num_hidden_layers=2)(folder)
    result = run(folder)
    assert result.code == 0
    assert "9 stored weights have no place in the model, such as model.layers.2" in result.err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Mamba2Config", "type mamba2, which keeps one running state instead of an entry per token"),
        ("RecurrentGemmaConfig", "type recurrent_gemma, which keeps one running state"),
        ("NemotronHConfig", "type nemotron_h, which keeps one running state"),
        ("FalconH1Config", "layers, which keep one running state"),
        ("BambaConfig", "layers, which keep one running state"),
        ("Lfm2Config", "has conv layers, which keep one running state"),
    ],
)
def test_models_with_a_running_state(tmp_path: Path, name: str, words: str) -> None:
    """By their configuration alone: nothing of their weights is loaded."""
    import transformers

    if not hasattr(transformers, name):
        pytest.skip(f"transformers {transformers.__version__} knows no {name}")
    folder = tmp_path / "model"
    shape = {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2} if name == "Lfm2Config" else {}
    getattr(transformers, name)(vocab_size=V, **shape).save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"")
    refused(words, run(with_tokenizer(folder)))


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("llama", "--device tpu", "--device must be auto, cpu, cuda, cuda:N or mps, not 'tpu'"),
        ("llama", "--context 32", "--context must be at least 64, not 32"),
        ("llama", "--draft kind=model,path=foreign,vocabulary=same", "token 2 is b' w2' in the target and b' w63'"),
        ("llama", "--draft kind=model,path=t5", "has an encoder for source texts and the target takes none"),
        ("llama", "--draft kind=head", "trained heads run beside models on OpenVINO only"),
        ("llama", "--draft kind=layerskip,skip=1", "use an OpenVINO model"),
        ("t5", "--strict", "--strict is for decoder-only models, not for an encoder-decoder: drop it"),
        ("t5", "--compile", "--compile is for decoder-only models, not for an encoder-decoder: drop it"),
        ("t5", "--adapter lora", "--adapter is for decoder-only models, not for an encoder-decoder: drop it"),
    ],
)
def test_options_that_do_not_fit(
    room: Path, monkeypatch: pytest.MonkeyPatch, model: str, options: str, words: str
) -> None:
    monkeypatch.chdir(room)
    refused(words, run(Path(model), *options.split()))


def test_what_is_not_there_is_named_with_the_line_that_brings_it(room: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        refused("sees no CUDA GPU: use --device cpu, or a CUDA build of torch", run(room / "llama", "--device", "cuda"))
    if find_spec("bitsandbytes") is None:
        refused("pip install bitsandbytes accelerate", run(room / "llama", "--quantization", "4bit"))


def test_a_model_that_does_not_fit_says_what_was_needed(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sooner.targets.openvino import memory

    monkeypatch.setattr(memory, "available_bytes", lambda: 100 * 1024)
    refused("cpu has 0 MB free, the model needs 0 MB for its weights and 0 MB with a small cache", run(room / "llama"))


def test_a_draft_that_does_not_fit_is_named(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sooner.targets.openvino import memory

    left = iter([10**9, 100 * 1024])
    monkeypatch.setattr(memory, "available_bytes", lambda: next(left))
    result = run(room / "llama", "--draft", f"kind=model,path={room / 'foreign'}")
    refused("draft model: cpu has 0 MB free, the model needs", result)


def test_encoder_decoders_are_sent_to_torch_before_anything_is_converted(room: Path) -> None:
    result = invoke("run", "-m", str(room / "t5"), "w5", load=sooner.load)
    refused("holds an encoder-decoder model, which runs on torch: add --backend torch", result)


def test_a_draft_of_another_vocabulary_drafts_by_way_of_the_text(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(room)
    result = run(Path("llama"), "--draft", "kind=model,path=foreign")
    assert result.code == 0
    assert "another vocabulary, different from token 2 on; 64 of the target's 64 tokens are shared" in result.err
    assert result.out == run(Path("llama"), "--draft", "none").out


def test_a_package_that_does_not_load_beside_this_torch_is_named(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchvision's CUDA build beside torch for processors: transformers says which class it could not import."""
    import transformers

    def broken(*_: object, **__: object) -> None:
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module 'LlamaForCausalLM'") from error

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", broken)
    refused("cannot import what runs", run(room / "llama"))
    refused("operator torchvision::nms does not exist", run(room / "llama"))
