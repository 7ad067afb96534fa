"""``sooner models`` over a cache with one small import."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commandline import invoke
from sooner.store import resolve
from sooner.store.manifest import ModelFiles, write_manifest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def imported(cache: Path) -> ModelFiles:
    folder = cache / "models" / "abc"
    folder.mkdir(parents=True)
    for name in ("model.xml", "model.bin", "tokenizer.json"):
        (folder / name).write_bytes(b"x" * 1000)
    files = ModelFiles(
        name="Small-1B",
        folder=folder,
        xml=folder / "model.xml",
        tokenizer=folder / "tokenizer.json",
        chat_template=None,
        eos_ids=(2,),
        bos_id=1,
        context=2048,
        architecture="llama",
        hidden_size=8,
        layers=2,
        vocab_size=32,
        sliding_window=None,
        sha256="abc123",
        quantisation="Q4_0",
        source="owner/small",
    )
    write_manifest(files)
    return files


def test_an_empty_cache_says_how_to_fill_it() -> None:
    result = invoke("models")
    assert (result.code, result.out) == (0, "")
    assert "sooner models pull" in result.err
    assert json.loads(invoke("models", "--json").out) == []


def test_the_list(imported: ModelFiles) -> None:
    out = invoke("models").out
    assert all(word in out for word in ("Small-1B", "Q4_0", "2048"))
    (record,) = json.loads(invoke("models", "--json").out)
    assert record["name"] == "Small-1B"
    assert record["size_bytes"] == 3000
    assert record["folder"] == str(imported.folder)


@pytest.mark.parametrize("name", ["Small-1B", "owner/small", "abc123", "abc"])
def test_a_model_goes_by_the_same_names_everywhere(name: str, imported: ModelFiles) -> None:
    assert json.loads(invoke("models", "show", name, "--json").out)["context"] == 2048
    assert resolve(name, offline=True) == imported
    assert invoke("models", "remove", name).code == 0
    assert not imported.folder.exists()


def test_what_is_known_of_one_is_shown(imported: ModelFiles) -> None:
    assert "owner/small" in invoke("models", "show", "Small-1B").out


@pytest.mark.parametrize("command", ["show", "remove"])
def test_a_near_miss_is_named(command: str, imported: ModelFiles) -> None:
    result = invoke("models", command, "Smal-1B")
    assert (result.code, result.out) == (2, "")
    assert "did you mean Small-1B?" in result.err
    assert result.err.count("\n") == 1
    assert imported.folder.exists()


def test_remove_frees_the_folder(imported: ModelFiles) -> None:
    result = invoke("models", "remove", "Small-1B", "--json")
    assert json.loads(result.out)["freed_bytes"] >= 3000
    assert not imported.folder.exists()
    assert invoke("models", "remove", "Small-1B").code == 2


def test_pull_offline_says_what_to_do() -> None:
    result = invoke("models", "pull", "--offline")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1


def test_an_unwritable_cache_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "file" / "cache"))
    result = invoke("models")
    assert result.code == 2
    assert "set SOONER_CACHE to another directory" in result.err
    assert result.err.count("\n") == 1
