"""Turns model files into an IR in the cache: once per content, whole or not at all.

Knows the two roads. GGUF files that OpenVINO reads go through it as they are; everything else is exported by
optimum-intel with 8-bit weights (extra ``convert``). Does not know where models come from, nor how they run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from sooner.errors import CacheError, MissingExtra, UnsupportedModel
from sooner.store.cache import content_hash, locked, publish, workspace, writing
from sooner.store.folder import IR, SETTINGS, check_ir, describe, refuse_encoder, refuse_eyes, write_settings
from sooner.store.gguf_config import hugging_face_config, needs_conversion, quantisation
from sooner.store.gguf_file import Gguf, read_gguf
from sooner.store.gguf_tokenizer import tokenizer_json, vocabulary
from sooner.store.manifest import ModelFiles, moved, read_manifest, write_manifest
from sooner.store.place import import_place

__all__ = ["import_folder", "import_gguf"]

Say = Callable[[str], None]


def import_gguf(path: Path, *, name: str, source: str, say: Say) -> ModelFiles:
    """Import the GGUF file at ``path``, or find its import.

    Raises `CorruptModel`, `UnsupportedModel`, `CacheError`, or `MissingExtra` naming what made conversion necessary.
    """
    sha256 = content_hash(path)

    def build(folder: Path) -> ModelFiles:
        gguf = read_gguf(path)
        words = vocabulary(gguf)
        config = hugging_face_config(gguf, words)
        say(f"importing {name} (once)")
        obstacle = needs_conversion(gguf, config) or _read_quickly(gguf, folder)
        template = gguf.get("tokenizer.chat_template", str)
        write_settings(folder, config, words, tokenizer_json(gguf, words), template)
        if obstacle is None:
            return describe(folder, name=name, source=source, sha256=sha256, quantisation=quantisation(gguf))
        _require_convert(f"converting {path.name} ({obstacle})")
        say(f"converting {name} to 8-bit weights: it has {obstacle}, which OpenVINO's GGUF reader does not take")
        with workspace(f"expand-{sha256[:16]}") as expanded:
            write_settings(expanded, config, words, tokenizer_json(gguf, words), template)
            _run("expand", path, expanded)
            return _export(expanded, folder, name=name, source=source)

    return _once(sha256, path.stat().st_size, build, say)


def import_folder(path: Path, *, name: str, source: str, say: Say) -> ModelFiles:
    """Import the Hugging Face folder ``path`` (config.json, safetensors, tokenizer), or find its import."""
    refuse_encoder(path)  # before its weights are read, and long before they are converted
    refuse_eyes(path)
    weights = sorted([*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")])
    texts = [file for file in (path / name for name in SETTINGS) if file.is_file()]
    sha256 = content_hash(*texts, *weights)

    def build(folder: Path) -> ModelFiles:
        _require_convert(f"converting the Hugging Face folder {path}")
        say(f"converting {name} to 8-bit weights (once)")
        for file in texts:
            shutil.copyfile(file, folder / file.name)
        return _export(path, folder, name=name, source=source)

    return _once(sha256, sum(file.stat().st_size for file in weights), build, say)


def _once(sha256: str, size: int, build: Callable[[Path], ModelFiles], say: Say) -> ModelFiles:
    final = import_place(sha256)
    if files := read_manifest(final):
        return files
    with locked(final.name, lambda: say("waiting for another process that imports this model")):
        if files := read_manifest(final):
            return files
        _check_space(final.parent, size)
        with workspace(final.name) as room:
            folder = room / "model"
            with writing():
                folder.mkdir()
            files = build(folder)
            check_ir(files.xml)
            with writing():
                write_manifest(files)
            publish(folder, final)
        return moved(files, final)


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < 2 * size:
        raise CacheError(
            f"importing needs about {2 * size >> 20} MB in {folder}, {free >> 20} MB are free; free some space or set "
            "SOONER_CACHE to another disk"
        )


def _read_quickly(gguf: Gguf, folder: Path) -> str | None:
    """Let OpenVINO read the file; it writes beside it. Returns why it refused, if it did."""
    link = folder / "model.gguf"
    try:
        os.link(gguf.path.resolve(), link)
    except OSError:  # another file system
        link.symlink_to(gguf.path.resolve())
    try:
        _run("quick", link)
    except UnsupportedModel as error:
        return f"content OpenVINO's reader refuses: {str(error).partition(';')[0]}"
    finally:
        link.unlink(missing_ok=True)
    return None


def _export(source_folder: Path, folder: Path, *, name: str, source: str) -> ModelFiles:
    _run("convert", source_folder, folder)
    xml = folder / IR
    sha256 = content_hash(xml, xml.with_suffix(".bin"))
    return describe(folder, name=name, source=source, sha256=sha256, quantisation="int8")


def _require_convert(what: str) -> None:
    if any(find_spec(package) is None for package in ("torch", "transformers", "optimum", "nncf")):
        raise MissingExtra(what, "convert")


def _run(*arguments: str | Path) -> None:
    """Run the worker to its end. Raises `UnsupportedModel` with its last words if it fails."""
    command = [sys.executable, "-m", "sooner.store.worker", *map(str, arguments)]
    # A session of its own: some of the libraries ask the terminal questions, or report home unless told not to.
    quiet = {**os.environ, "NNCF_CI": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=quiet,
        start_new_session=True,
    ) as worker:
        try:
            assert worker.stderr is not None
            lines = [line.strip() for line in worker.stderr if line.strip()]
            code = worker.wait()
        except BaseException:
            worker.kill()
            raise
    if code < 0:
        name = signal.Signals(-code).name
        raise CacheError(f"the importer was ended by {name}, perhaps for lack of memory; free some and try again")
    if code:
        reason = next((line for line in reversed(lines) if not line.startswith("Exception from")), "no reason given")
        raise UnsupportedModel(f"the importer gave up ({reason[:200]}); use another format of the model")
