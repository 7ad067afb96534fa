"""The cache directory: where it is, how something gets into it whole or not at all, and what is remembered.

Knows folders, locks and file identities. Does not know what a model is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sooner.errors import CacheError

__all__ = ["cache_dir", "content_hash", "locked", "publish", "recall", "remember", "wipe", "workspace", "writing"]

_CHUNK = 1 << 20


def cache_dir(*parts: str) -> Path:
    """A folder in the cache, made if it is missing. ``SOONER_CACHE`` overrides the platform's cache directory.

    Raises `CacheError` if it cannot be made.
    """
    root = os.environ.get("SOONER_CACHE")
    if not root:
        from platformdirs import user_cache_dir

        root = user_cache_dir("sooner", appauthor=False)
    folder = Path(root).expanduser().absolute().joinpath(*parts)
    with writing():
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def writing() -> Iterator[None]:
    """Turns the operating system's complaints about the cache into a `CacheError` that names the remedy."""
    try:
        yield
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        raise CacheError(
            f"the cache{where} cannot be written ({error.strerror or error}); "
            "free some space, fix its permissions, or set SOONER_CACHE to another directory"
        ) from error


@contextmanager
def locked(key: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock ``key`` among all processes that share the cache; the system frees it when its holder dies.

    ``waiting`` is called once if another process holds it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(cache_dir("locks") / f"{key}.lock")
    with writing():
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waiting()
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def workspace(key: str) -> Iterator[Path]:
    """A fresh folder on the cache's file system, removed afterwards. What a killed holder of ``key`` left goes first.

    Call it under `locked` with the same key.
    """
    parent = cache_dir("building")
    for stale in [*parent.glob(f"{key}.*"), *parent.glob("removed.*/*")]:
        shutil.rmtree(stale, ignore_errors=True)
    with writing():
        folder = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(built: Path, final: Path) -> None:
    """Move a finished file or folder to its place in one step, replacing what was there."""
    with writing():
        if built.is_dir():
            wipe(final)
        os.replace(built, final)


def wipe(folder: Path) -> None:
    """Remove a published folder: it disappears whole before its files are deleted."""
    if not folder.exists():
        return
    with writing():
        doomed = Path(tempfile.mkdtemp(prefix="removed.", dir=cache_dir("building")))
        os.replace(folder, doomed / folder.name)
    shutil.rmtree(doomed, ignore_errors=True)


def remember(key: str, fact: dict[str, Any]) -> None:
    """Keep ``fact`` under ``key`` for later runs."""
    path = cache_dir("facts") / _slot(key)
    with writing():
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"key": key, **fact}, file)
        os.replace(name, path)


def recall(key: str) -> dict[str, Any] | None:
    """What was remembered under ``key``, if anything."""
    try:
        fact = json.loads((cache_dir("facts") / _slot(key)).read_bytes())
    except (OSError, ValueError):
        return None
    return fact if isinstance(fact, dict) and fact.get("key") == key else None


def content_hash(*paths: Path) -> str:
    """The SHA-256 of the files one after another, in hex.

    It is remembered by path, size and time of change, so that a large file is read once, not at every start.
    """
    stats = [path.stat() for path in paths]
    identity = [[stat.st_size, stat.st_mtime_ns, stat.st_ino] for stat in stats]
    key = "\n".join(["sha256", *map(str, paths)])
    known = recall(key)
    if known and known.get("identity") == identity:
        return str(known["sha256"])
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    remember(key, {"identity": identity, "sha256": digest.hexdigest()})
    return digest.hexdigest()


def _slot(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:32] + ".json"
