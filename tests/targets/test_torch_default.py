"""The default model as a Hugging Face folder on the torch target: its text is transformers' own, drafted or not."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sooner
from commandline import invoke
from sooner.cli.app import app
from sooner.control.fixed import FixedController
from sooner.draft import create_drafter
from sooner.draft.oracle import OracleDrafter
from sooner.errors import InvalidRequest
from test_engine_laws import visible

pytestmark = pytest.mark.convert

PROMPTS = ["Why is the sky blue?", "Repeat exactly: The quick brown fox jumps. The quick brown fox jumps."]
OPTIONS: dict[str, Any] = {"max_tokens": 24, "seed": 3, "logprobs": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> sooner.Engine:
    return sooner.load(backend="torch", device="cpu", max_running=2)


def test_rows_are_invariant_and_costs_are_measured(engine: sooner.Engine) -> None:
    assert engine.target.row_invariant, dict(engine.fingerprint)
    assert engine.cost is not None
    assert engine.cost.ms[0] > 0
    assert list(engine.cost.ms) == sorted(engine.cost.ms)


def test_the_text_is_transformers_own(engine: sooner.Engine) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from sooner.store import resolve_folder

    model = AutoModelForCausalLM.from_pretrained(resolve_folder().folder, dtype=torch.float32).eval()
    ids = engine.request(PROMPTS[0]).prompt
    given = torch.tensor([ids])
    with torch.inference_mode():
        out = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=24, do_sample=False)
    got = engine.generate(PROMPTS[0], temperature=0.0, max_tokens=24)
    assert list(got.token_ids) == out[0, len(ids) :].tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_and_batches_change_no_bit(engine: sooner.Engine, temperature: float) -> None:
    keep = engine.drafter, engine.controller
    requests = [engine.request(prompt, temperature=temperature, **OPTIONS) for prompt in PROMPTS]
    want = [visible(engine.generate(p, temperature=temperature, drafting=False, **OPTIONS)) for p in PROMPTS]
    truth = {request.prompt: list(w[1]) for request, w in zip(requests, want, strict=True)}
    drafters = [
        keep[0],
        OracleDrafter(truth, max=6, rate=0.3),
        create_drafter("random:tree=true,max=7", vocab_size=engine.target.vocab_size),
    ]
    try:
        for drafter in drafters:
            engine.drafter, engine.controller = drafter, FixedController(6)
            got = engine.generate_many(PROMPTS, temperature=temperature, **OPTIONS)
            assert [visible(completion) for completion in got] == want
    finally:
        engine.drafter, engine.controller = keep


def test_commands_choose_it(tmp_path: Path) -> None:
    runner = CliRunner()
    folder = tmp_path / "hf"
    done = runner.invoke(app, ["models", "export", "SmolLM2-135M-Instruct", str(folder)])
    assert done.exit_code == 0, done.output
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    done = runner.invoke(
        app,
        ["run", "Hi", "-m", str(folder), "--backend", "torch", "--device", "cpu", "--max-tokens", "6", "--json"],
    )
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["fingerprint"]["engine"].startswith("torch ")
    assert answer["usage"]["completion_tokens"] == 6


def test_a_full_disk_in_an_export_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise importlib.import_module("safetensors").SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    done = invoke("models", "export", "SmolLM2-135M-Instruct", str(tmp_path / "hf"))
    assert done.code == 2
    assert "model-00000.safetensors cannot be written (I/O error: No space left" in done.err
    assert "free some space" in done.err


def test_options_of_torch_need_torch() -> None:
    with pytest.raises(InvalidRequest, match="strict needs torch: add --backend torch"):
        sooner.load(torch={"strict": True})
    with pytest.raises(InvalidRequest, match="OpenVINO runs models on cpu"):
        sooner.load(backend="openvino", device="cuda")
    with pytest.raises(InvalidRequest, match="backend must be"):
        sooner.load(backend="jax")  # type: ignore[arg-type]  # what a caller may write
