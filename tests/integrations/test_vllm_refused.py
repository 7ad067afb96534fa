"""What the proposer refuses when vLLM makes it, in one line that says what to do."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from fake_vllm import config

from sooner.errors import DraftError, InvalidRequest, SoonerError, TargetError
from sooner.integrations.vllm import PORTS, Proposer, drafter_for
from sooner.integrations.vllm_port import installed, port_for


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))


def line(error: BaseException) -> str:
    assert isinstance(error, SoonerError)
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "1.0", "0.9.2rc1", "dev"])
def test_a_version_that_is_not_supported(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=version))
    with pytest.raises(TargetError) as refused:
        Proposer(config())
    assert line(refused.value) == (
        f"vLLM {version} is none that sooner drafts in (from 0.32, before 0.33): pip install 'vllm>=0.32,<0.33', or "
        "draft with vLLM's own methods (sooner tune --export vllm)"
    )


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1.post2", "0.32.0+cpu", "0.32.1.dev3"])
def test_versions_that_are(version: str) -> None:
    assert port_for(version).__name__ in PORTS.values()  # type: ignore[attr-defined]  # a module


def test_no_vllm_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.delitem(sys.modules, "vllm")
    monkeypatch.setattr("builtins.__import__", _without_vllm)
    with pytest.raises(TargetError) as refused:
        installed()
    assert line(refused.value) == "vLLM is not installed here: pip install 'vllm>=0.32,<0.33'"


_import = __import__


def _without_vllm(name: str, *given: Any, **named: Any) -> Any:
    if name == "vllm":
        raise ModuleNotFoundError("No module named 'vllm'", name="vllm")
    return _import(name, *given, **named)


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("sufix", "unknown drafter 'sufix' (did you mean suffix?)"),
        ("suffix:most=3", "drafter suffix has no option 'most'"),
        ("suffix:max=many", "suffix option max must be an integer"),
        ("table:path=nowhere.npz", "nowhere.npz is no successor table"),
        ("table", "there is no table for this model"),
        ("corpus:path=x", "drafter corpus needs the model's tokenizer, which vLLM does not show: use suffix, recycle"),
        ("given", "drafter given needs an expected text with each request, which vLLM does not show"),
        *(
            (f"kind={kind},path=small", f"drafter {kind} needs a model, and vLLM runs only its own")
            for kind in ("model", "head", "self", "layerskip")
        ),
    ],
)
def test_drafters_that_cannot_be(draft: str, said: str) -> None:
    with pytest.raises(DraftError) as refused:
        Proposer(config({"draft": draft}))
    assert said in line(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drafter": "suffix"}, "no option 'drafter' in vLLM (did you mean draft?): there are draft, budget, tok"),
        ({"draft": []}, "sooner's draft in vLLM is a list of short forms"),
        ({"draft": [{"kind": "suffix"}]}, "sooner's draft in vLLM is a list of short forms"),
        ({"budget": 9}, "sooner's budget in vLLM must be an integer from 0 to 8, not 9"),
        ({"budget": True}, "sooner's budget in vLLM must be an integer from 0 to 8, not True"),
        ({"budget": "3"}, "not '3'"),
        ({"tokens": -1}, "sooner's tokens in vLLM must be an integer from 0"),
        ("suffix", "sooner's options in additional_config are an object"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(options: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Proposer(config(options))
    assert said in line(refused.value)


def test_stages_of_a_pipeline() -> None:
    with pytest.raises(TargetError, match="set pipeline_parallel_size=1"):
        Proposer(config(pipeline=2))


def test_a_table_for_the_model_is_among_the_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from sooner.draft.table import packaged_table
    from sooner.integrations.vllm import Options
    from sooner.integrations.vllm_port import Place
    from sooner.store.cache import cache_dir, content_hash
    from sooner.store.default import DEFAULT_SHA256

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    place = Place(model=str(folder), vocab_size=49152, context=100, most=8)
    assert drafter_for(Options(), place).name == "suffix+recycle"
    shipped = packaged_table(DEFAULT_SHA256)
    assert shipped is not None
    made = content_hash(folder / "config.json", folder / "model.safetensors")
    monkeypatch.setattr("sooner.draft.table.SuccessorTable.load", lambda path: SimpleNamespace(model=made, keys={}))
    (cache_dir("tables") / f"{made[:16]}.npz").write_bytes(shipped.read_bytes())
    assert drafter_for(Options(), place).name == "suffix+recycle+table"
