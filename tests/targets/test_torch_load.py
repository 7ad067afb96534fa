"""What the torch target refuses at load, and what it says of a device and a model (extra ``torch``)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_torch import CONTEXT, V, build, configuration, open_target

from sooner.control.fixed import FixedController
from sooner.draft.ngram import NgramDrafter
from sooner.engine import Engine
from sooner.errors import (
    CorruptModel,
    InvalidRequest,
    ModelNotFound,
    SoonerError,
    TargetError,
    UnsupportedModel,
)
from sooner.store.hugging_face import use_folder
from sooner.targets.probe import check_rows
from sooner.tree import chain
from sooner.types import Work
from toy import ToyCodec

pytestmark = pytest.mark.convert


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("llama", tmp_path_factory.mktemp("models") / "llama")


def refused(kind: type[SoonerError], words: str, folder: Path, **options: Any) -> None:
    with pytest.raises(kind, match=words) as caught:
        open_target(folder, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("bamba", "(mamba|linear_attention) layers, which keep one running state"),
        ("lfm2", "conv layers, which keep one running state"),
    ],
)
def test_models_that_cannot_be_cut_are_refused_by_their_configuration(tmp_path: Path, family: str, words: str) -> None:
    configuration(family).save_pretrained(tmp_path / family)
    refused(UnsupportedModel, words, tmp_path / family)


def test_models_that_attend_by_themselves_are_refused_at_load(tmp_path: Path) -> None:
    refused(
        UnsupportedModel, "instead of through transformers' attention interface", build("bloom", tmp_path / "bloom")
    )


def test_experts_and_sinks_are_driven_and_said_to_depend_on_their_neighbours(tmp_path: Path) -> None:
    """Products over the tokens of one expert have as many rows as were sent there: near-ties, and the user is told."""
    said: list[str] = []
    target = open_target(build("gpt_oss", tmp_path / "gpt_oss"), log=said.append)
    assert any("rows depend on how they are scored" in line for line in said) is not target.row_invariant
    assert target.runner.port.windows == {12}


@pytest.mark.parametrize("family", ["phi3", "gpt_neox", "opt"])
def test_what_follows_the_interface_runs_without_a_list(tmp_path: Path, family: str) -> None:
    """Loading scores a text in pieces and on a branch, and compares rows over all shapes."""
    import transformers

    if family == "opt" and transformers.__version__.startswith("4."):
        pytest.skip("version 4 counts OPT's positions from a mask of its own: refused at load")
    assert open_target(build(family, tmp_path / family)).row_invariant


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v2", "deepseek_v3"])
def test_experts_run_with_near_ties(tmp_path: Path, family: str) -> None:
    """Their rows are compared at load, too; that they depend on their neighbours is said."""
    said: list[str] = []
    target = open_target(build(family, tmp_path / family), log=said.append)
    assert any("rows depend on how they are scored" in line for line in said) is not target.row_invariant


def test_a_model_that_computes_otherwise_in_pieces_is_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: here the entries of earlier tokens are forgotten."""
    from sooner.targets.torch import attention

    seen = attention.attend

    def forgetful(query: Any, keys: Any, values: Any, mask: Any, how: Any) -> Any:
        return seen(query, keys.roll(1, 2), values, mask, how)

    monkeypatch.setattr(attention, "attend", forgetful)
    refused(UnsupportedModel, "computes other rows when a text is scored in pieces", llama)


def test_caps_on_scores_are_the_models_not_those_of_a_kernel_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of Gemma 2's laws: without its caps it is refused."""
    from sooner.targets.torch import attention

    seen: Any = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *given: seen(*given[:-1], {**given[-1], "softcap": None}))
    refused(UnsupportedModel, "computes other rows", build("gemma2", tmp_path / "gemma2"))


def test_damaged_folders_are_refused(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    folder.mkdir()
    config = json.loads((llama / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    weights = (llama / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refused(CorruptModel, "cannot load", folder)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    refused(CorruptModel, "lacks 9 of the model's weights", folder)
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nobody"}))
    refused(UnsupportedModel, "does not know the model", folder)


def test_devices_that_are_not_there_are_refused(llama: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        refused(InvalidRequest, "sees no CUDA GPU: use --device cpu", llama, device="cuda")
    refused(InvalidRequest, "device must be auto, cpu, cuda", llama, device="tpu")
    refused(InvalidRequest, "precision must be auto, f32, bf16, f16", llama, precision="int4")
    refused(InvalidRequest, "threads must be at least 1", llama, threads=0)


def test_a_full_device_says_what_was_needed(llama: Path) -> None:
    refused(TargetError, "cpu has 0 MB free, the model needs .* for its weights", llama, available=lambda: 1000)


def test_what_is_not_installed_is_named(llama: Path) -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        refused(UnsupportedModel, "pip install bitsandbytes", llama, quantization="4bit")
    refused(InvalidRequest, "4bit, 8bit", llama, quantization="2bit")


def test_another_transformers_is_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sooner.targets.torch import cache

    for version in ("4.50.1", "6.0.0"):
        monkeypatch.setattr(cache, "__version__", version)
        refused(TargetError, f"transformers {version} is none that sooner knows", llama)


def test_the_fingerprint_names_all_that_bits_depend_on(llama: Path) -> None:
    target = open_target(llama)
    print_ = target.fingerprint
    assert {"model", "engine", "processor", "precision", "kv_precision", "rows"} <= set(print_)
    assert print_["engine"].startswith("torch ")
    assert "transformers " in print_["engine"]
    assert print_["precision"] == "float32"
    assert (target.vocab_size, target.context, target.widths) == (V, CONTEXT, ())
    assert target.plan.token_bytes == 3 * 2 * 8 * 2 * 4
    assert open_target(llama, pool_tokens=80).context == 80
    other = open_target(llama, precision="bf16")
    assert other.fingerprint["precision"] == "bfloat16"


def test_the_check_of_rows_is_remembered(llama: Path) -> None:
    known: dict[str, Any] = {}
    first = open_target(llama, recall=known.get, remember=known.__setitem__)
    assert first.row_invariant
    ((key, fact),) = known.items()
    assert fact == {"rule": [4, 4]}
    again = open_target(llama, recall={key: {"rule": None}}.get, remember=known.__setitem__)
    assert not again.row_invariant


def test_the_probe_sees_rows_that_depend_on_their_number(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the check: torch's own products and passes of any width."""
    from sooner.targets.torch.layout import RowRule
    from sooner.targets.torch.runner import Runner

    target = open_target(llama)
    assert check_rows(target, 120).invariant
    forward = Runner.forward

    def narrow(self: Any, tokens: Any, positions: Any, wanted: Any, attending: Any) -> Any:
        logits, hidden = forward(self, tokens, positions, wanted, attending)
        return logits * np.float32(1 + 1e-7 * len(tokens)), hidden

    monkeypatch.setattr(Runner, "forward", narrow)
    monkeypatch.setattr(target.runner, "rule", RowRule())
    assert not check_rows(target, 120).invariant


def test_hidden_rows_are_those_of_the_model(llama: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    target = open_target(llama, taps=(0, -1))
    tokens = tuple(range(3, 15))
    session = target.open()
    rows = target.score([Work(session, tokens[:9], chain(tokens[9:], 1.0, "test"))])[0]
    assert rows.hidden is not None
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32).eval()
    with torch.no_grad():
        seen = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    assert np.allclose(rows.hidden[:, :32], seen[1][0, 8:].numpy(), atol=1e-4)
    with pytest.raises(InvalidRequest, match="layers 0 to 2"):
        open_target(llama, taps=(7,))


def test_misuse_is_refused(llama: Path) -> None:
    target, other = open_target(llama), open_target(llama)
    session = target.open()
    for works, words in (
        ([Work(session, ())], "no token"),
        ([Work(session, (1,)), Work(session, (1,))], "share a session"),
        ([Work(other.open(), (1,))], "not opened on this target"),
        ([Work(session, (1,) * (CONTEXT + 1))], "past the context"),
    ):
        with pytest.raises(TargetError, match=words):
            target.score(works)
    with pytest.raises(TargetError, match="no path"):
        session.settle((0,))
    works = [Work(target.open(salt=str(i)), (1,)) for i in range(target.slots.count + 1)]
    assert not target.fits(works)
    assert target.fits(works[1:])
    with pytest.raises(TargetError, match="no room"):
        target.score(works)
    session.close()
    with pytest.raises(TargetError, match="closed"):
        target.score([Work(session, (1,))])


def test_a_failing_pass_leaves_the_session_as_it_was(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = open_target(llama)
    session = target.open()
    want = target.score([Work(session, (1, 2, 3))])[0].logits.copy()

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(type(target.runner.port), "forward", fail)
        with pytest.raises(TargetError, match="out of memory in a pass: load with a smaller"):
            target.score([Work(session, (5, 6))])
    assert list(session.tokens) == [1, 2, 3]
    session.sync([1, 2])
    assert np.array_equal(target.score([Work(session, (3,))])[0].logits, want)


def test_memory_that_ends_in_mid_request_ends_that_request_alone(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks for rows behind position 30 is too much for this device."""
    import torch

    target = open_target(llama)
    options: dict[str, Any] = {"max_tokens": 12, "seed": 5, "ignore_eos": True}
    prompts = [[1, 2, 3], [4] * 24, [5, 6]]

    def engine() -> Engine:
        target.slots.purge()
        return Engine(target, ToyCodec(), drafter=NgramDrafter(), controller=FixedController(4), max_running=3)

    want = [engine().generate(prompt, **options).token_ids for prompt in prompts]
    forward = type(target.runner.port).forward

    def full(self: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
        if int(positions.max()) >= 30:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(self, tokens, positions, *rest)

    monkeypatch.setattr(type(target.runner.port), "forward", full)
    beside = engine()
    handles = [beside.submit(beside.request(prompt, **options)) for prompt in prompts]
    while beside.busy:
        beside.step()
    assert "cpu is out of memory in a pass: load with a smaller --context" in str(handles[1].error)
    assert handles[1].steps, "it had begun to write"
    assert [beside.completion(handles[i]).token_ids for i in (0, 2)] == [want[0], want[2]]
    assert target.slots.free == target.slots.count


def test_folders_without_weights_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="has no safetensors"):
        use_folder(tmp_path, name="a", source="a")
    (tmp_path / "openvino_model.xml").write_text("<net></net>")
    with pytest.raises(UnsupportedModel, match="OpenVINO export, which torch does not run"):
        use_folder(tmp_path, name="a", source="a")


def test_as_many_sequences_are_compared_as_fit(llama: Path) -> None:
    """Five would not: the check of a target for one text at a time would have compared nothing."""
    found = [way for way in check_rows(open_target(llama, slots=2), 60).lawful if "sequences" in way.name]
    assert [way.name for way in found] == ["2 sequences in a pass"]
    assert found[0].rows > 0
