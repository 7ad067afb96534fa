"""Where a model came from, and its Hugging Face folder: what the torch target and the export start from."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tiny_gguf import CONTEXT, HIDDEN, LAYERS, write_gguf

from sooner.errors import CacheError, MissingExtra, ModelNotFound, UnsupportedModel
from sooner.store import locate, resolve, resolve_folder
from sooner.store.folder import describe
from sooner.store.hugging_face import export_gguf

HAS_SAFETENSORS = importlib.util.find_spec("safetensors") is not None


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_files_folders_and_names_are_located(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    gguf = write_gguf(tmp_path / "here" / "tiny.gguf")
    assert locate(str(gguf)) == (gguf, "tiny")
    assert locate(str(gguf.parent)) == (gguf, "tiny")
    resolve(str(gguf))
    assert locate("tiny") == (gguf, "tiny"), "an imported model's name leads to its source"
    with pytest.raises(ModelNotFound, match="no model 'nothing'"):
        locate("nothing", offline=True)
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert locate(str(folder)) == (folder, "hf")


def test_older_models_name_their_sizes_otherwise(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    config = {"model_type": "gpt2", "n_positions": 77, "n_embd": 32, "n_layer": 3, "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps(config))
    files = describe(tmp_path, name="a", source="a", sha256="0", quantisation="as stored")
    assert (files.context, files.hidden_size, files.layers) == (77, 32, 3)


def test_a_model_that_looks_at_pictures_is_sent_to_torch_before_anything_is_converted(tmp_path: Path) -> None:
    config = {"model_type": "llava", "vision_config": {}, "text_config": {"model_type": "llama"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights that nobody reads")
    with pytest.raises(UnsupportedModel, match="runs on torch: add --backend torch"):
        resolve(str(tmp_path), progress=pytest.fail)


@pytest.mark.convert
def test_an_export_is_made_once_and_is_whole(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", template="{{ messages[0].content }}")
    files = resolve_folder(str(gguf))
    assert (files.context, files.hidden_size, files.layers) == (CONTEXT, HIDDEN, LAYERS)
    assert files.chat_template == "{{ messages[0].content }}"
    assert resolve_folder(str(gguf), progress=pytest.fail) == files
    with pytest.raises(CacheError, match="is not empty: name a new folder"):
        export_gguf(gguf, files.folder)


@pytest.mark.skipif(HAS_SAFETENSORS, reason="what is missing elsewhere is there")
def test_an_export_names_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"sooner\[torch\]"):
        export_gguf(write_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
