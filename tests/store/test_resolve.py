from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_gguf import CONTEXT, HIDDEN, LAYERS, write_gguf

from sooner.errors import CorruptModel, MissingExtra, ModelNotFound, SoonerError, UnsupportedModel
from sooner.store import ModelFiles, import_model, list_models, remove, resolve
from sooner.store.manifest import MANIFEST
from sooner.text import Tokenizer

WORKER = "import sys; from sooner.store import resolve; print(resolve(sys.argv[1], progress=print).folder)"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", template="{{ messages[0].content }}")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def imported(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModelFiles]:
    cache = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOONER_CACHE", str(cache))
        return cache, resolve(str(tiny))


@pytest.fixture
def copied_cache(imported: tuple[Path, ModelFiles], own_cache: Path) -> Path:
    shutil.copytree(imported[0], own_cache)
    return own_cache


def test_a_gguf_file_is_imported_once(imported: tuple[Path, ModelFiles], tiny: Path) -> None:
    files = imported[1]
    assert (files.name, files.source, files.quantisation) == ("tiny", str(tiny), "Q8_0")
    assert (files.architecture, files.hidden_size, files.layers, files.context) == ("llama", HIDDEN, LAYERS, CONTEXT)
    assert (files.vocab_size, files.eos_ids, files.bos_id, files.sliding_window) == (320, (0,), 1, None)
    assert files.chat_template == "{{ messages[0].content }}"
    assert files.xml.is_file()
    assert files.xml.with_suffix(".bin").is_file()
    assert not list(files.folder.glob("*.gguf"))
    assert tiny.is_file()
    assert Tokenizer.load(files.folder).eos_ids == {0}


def test_a_second_resolve_does_no_work(
    copied_cache: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, imported: tuple[Path, ModelFiles]
) -> None:
    monkeypatch.setattr(import_model, "_run", pytest.fail)
    files = resolve(str(tiny))
    assert files.folder.is_relative_to(copied_cache)
    assert files.sha256 == imported[1].sha256
    said: list[str] = []
    assert resolve(str(tiny), progress=said.append) == files
    assert not said


def test_a_warm_start_is_quick_and_light(default_files: ModelFiles) -> None:
    code = (
        "import sys, time, sooner.store as store\n"
        "began = time.perf_counter(); store.resolve(offline=True); print(time.perf_counter() - began)\n"
        "print([m for m in ('gguf', 'numpy', 'openvino', 'tokenizers', 'filelock', 'subprocess') if m in sys.modules])"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()
        for _ in range(3)
    ]
    assert {loaded for _, loaded in runs} == {"[]"}
    assert min(float(seconds) for seconds, _ in runs) < 0.05


def test_the_default_model_is_described(default_files: ModelFiles) -> None:
    assert default_files.name == "SmolLM2-135M-Instruct"
    assert (default_files.context, default_files.layers, default_files.hidden_size) == (8192, 30, 576)
    assert default_files.eos_ids == (0, 2)
    assert default_files.quantisation == "Q4_1"
    assert default_files.chat_template is not None
    assert "<|im_start|>" in default_files.chat_template


@pytest.mark.parametrize("damage", ["bin", "tokenizer", "manifest", "missing"])
def test_a_damaged_import_is_rebuilt(copied_cache: Path, tiny: Path, damage: str) -> None:
    files = resolve(str(tiny))
    target = {
        "bin": files.xml.with_suffix(".bin"),
        "tokenizer": files.tokenizer,
        "manifest": files.folder / MANIFEST,
        "missing": files.xml,
    }[damage]
    if damage == "missing":
        target.unlink()
    else:
        os.truncate(target, target.stat().st_size // 2)
    assert not list_models()
    said: list[str] = []
    again = resolve(str(tiny), progress=said.append)
    assert said == ["importing tiny (once)"]
    assert again == files
    assert len(list_models()) == 1


def test_a_killed_import_leaves_nothing_half_made(own_cache: Path, tiny: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", WORKER, str(tiny)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "importing tiny (once)\n"
    deadline = time.monotonic() + 20
    while not list(own_cache.glob("building/*/model/model.gguf")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    workers = _children(child.pid)
    child.send_signal(signal.SIGKILL)
    child.stdout.close()
    child.wait()
    assert list((own_cache / "building").iterdir()), "the kill came too late to show anything"
    assert not list((own_cache / "models").iterdir())
    assert resolve(str(tiny)).xml.is_file()
    assert not list((own_cache / "building").iterdir())
    _await_end(workers)


def _await_end(workers: list[int]) -> None:
    """The importer notices that its parent is gone."""
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_ctrl_c_ends_the_importer_and_cleans_up(own_cache: Path, tiny: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tiny)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 20
    while not (workers := _children(child.pid)) or not list(own_cache.glob("building/*/model/model.gguf")):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=20)
    assert error.rstrip().endswith("KeyboardInterrupt")
    _await_end(workers)
    assert not list((own_cache / "building").iterdir())
    assert not list((own_cache / "models").iterdir())


def test_two_processes_at_once_import_once(own_cache: Path, tiny: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tiny)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0][-1] == said[1][-1]
    assert sum("importing tiny (once)" in lines for lines in said) == 1
    assert len(list((own_cache / "models").iterdir())) == 1


def test_an_importer_that_dies_is_reported(own_cache: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(MissingExtra, match="content OpenVINO's reader refuses"):
        resolve(str(tiny))
    assert not list((own_cache / "models").iterdir())
    assert not list((own_cache / "building").iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "Q5_0"}, "Q5_0 tensors"),
        ({"kind": "BF16"}, "BF16 tensors"),
        ({"extra": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}}, "scaled rotary positions"),
        ({"rope_freqs": [1.0] * 16}, "scaled rotary positions"),
    ],
)
def test_what_the_quick_reader_refuses_names_the_extra(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], says: str
) -> None:
    monkeypatch.setattr(import_model, "find_spec", lambda _: None)
    path = write_gguf(tmp_path / "other.gguf", **options)  # type: ignore[arg-type]  # parametrised options
    with pytest.raises(MissingExtra, match=says) as caught:
        resolve(str(path))
    assert 'pip install "sooner[convert]"' in str(caught.value)
    assert caught.value.extra == "convert"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"arch": "gemma3"}, "'gemma3' model"),
        ({"pre": "martian"}, "'martian'"),
        ({"extra": {"llama.expert_count": 8}}, "expert_count"),
        ({"extra": {"llama.rope.scaling.type": "yarn"}}, "'yarn'"),
    ],
)
def test_unsupported_models_are_refused(own_cache: Path, tmp_path: Path, options: dict[str, object], says: str) -> None:
    path = write_gguf(tmp_path / "other.gguf", **options)  # type: ignore[arg-type]  # parametrised options
    with pytest.raises(UnsupportedModel, match=says) as caught:
        resolve(str(path))
    assert "\n" not in str(caught.value)
    assert not list_models()


def test_a_sliding_window_is_recorded(own_cache: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "window.gguf", extra={"llama.attention.sliding_window": 64})
    assert resolve(str(path)).sliding_window == 64


def test_a_sentence_piece_model_needs_no_conversion(own_cache: Path, tmp_path: Path) -> None:
    files = resolve(str(write_gguf(tmp_path / "spm.gguf", sentence_piece=True)))
    assert (files.quantisation, files.vocab_size, files.bos_id) == ("Q8_0", 320, 1)
    tokenizer = Tokenizer.load(files.folder)
    ids = tokenizer.encode("the quick 한국 é")
    assert ids[0] == 1
    assert tokenizer.decode(ids) == "the quick 한국 é"


def test_a_truncated_file_is_corrupt(own_cache: Path, tiny: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(tiny.read_bytes()[:-1000])
    with pytest.raises(CorruptModel, match="truncated"):
        resolve(str(short))


@pytest.mark.parametrize("model", ["nowhere/at/all.gguf", "./absent", "two words", "no-such-name", "x.gguf"])
def test_unknown_models_say_what_is_accepted(own_cache: Path, model: str) -> None:
    with pytest.raises(ModelNotFound, match=r"sooner models") as caught:
        resolve(model)
    assert "\n" not in str(caught.value)


def test_a_folder_with_one_gguf_stands_for_it_and_with_two_does_not(
    own_cache: Path, tiny: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ModelNotFound, match="holds no model"):
        resolve(str(folder))
    shutil.copy(tiny, folder / "a.gguf")
    assert resolve(str(folder)).name == "a"
    shutil.copy(tiny, folder / "b.gguf")
    with pytest.raises(ModelNotFound, match=r"holds 2 \.gguf files"):
        resolve(str(folder))


def test_an_exported_folder_is_used_in_place(copied_cache: Path, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    shutil.copytree(resolve(str(tiny)).folder, folder)
    (folder / MANIFEST).unlink()
    for given in (folder, folder / "openvino_model.xml"):
        files = resolve(str(given))
        assert (files.folder, files.name, files.quantisation) == (folder, "export", "as exported")
    assert len(files.sha256) == 64
    os.truncate(folder / "openvino_model.bin", 100)
    with pytest.raises(CorruptModel, match=r"openvino_model.bin is truncated \(100 of"):
        resolve(str(folder))


@pytest.mark.parametrize("missing", ["tokenizer.json", "config.json", "openvino_model.bin"])
def test_an_incomplete_export_names_what_is_missing(
    copied_cache: Path, tiny: Path, tmp_path: Path, missing: str
) -> None:
    folder = tmp_path / "export"
    shutil.copytree(resolve(str(tiny)).folder, folder)
    (folder / missing).unlink()
    with pytest.raises(ModelNotFound, match=missing):
        resolve(str(folder))


def test_a_damaged_config_is_corrupt(copied_cache: Path, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    shutil.copytree(resolve(str(tiny)).folder, folder)
    for text in ("{broken", "[]", json.dumps({"model_type": "llama"})):
        (folder / "config.json").write_text(text)
        with pytest.raises(CorruptModel, match=r"config\.json"):
            resolve(str(folder))


def test_hugging_face_folders_need_the_extra(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_model, "find_spec", lambda _: None)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(MissingExtra, match="converting the Hugging Face folder"):
        resolve(str(tmp_path / "hf"))


def test_imports_are_listed_found_by_name_and_removed(copied_cache: Path, tiny: Path) -> None:
    resolve(str(tiny))
    assert [files.name for files in list_models()] == ["tiny"]
    assert resolve("tiny", offline=True) == list_models()[0]
    with pytest.raises(ModelNotFound, match="there are: tiny"):
        remove("other")
    assert remove("tiny") > 10_000
    assert list_models() == []
    with pytest.raises(ModelNotFound, match="there are: none"):
        remove("tiny")


def test_a_full_disk_is_said_before_it_happens(own_cache: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(SoonerError, match="free some space or set SOONER_CACHE"):
        resolve(str(tiny))


def test_a_model_on_another_file_system_is_imported_by_link(
    own_cache: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert resolve(str(tiny)).xml.is_file()
    assert tiny.is_file()
