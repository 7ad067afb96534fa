"""Folders in the cache that are built once from something that may change, and again when it did.

Knows slots and identities. Does not know what is built.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sooner.store.cache import cache_dir, locked, publish, wipe, workspace, writing

__all__ = ["shelved"]

_KEPT = 8
"""Folders of one kind that stay; the one unused for longest goes first."""

_IDENTITY = "identity"

T = TypeVar("T")


def shelved(
    kind: str,
    slot: str,
    identity: str,
    *,
    build: Callable[[Path], None],
    read: Callable[[Path], T],
    changed: Callable[[], None] = lambda: None,
) -> T:
    """What ``read`` makes of the folder that ``build`` filled for ``slot`` when it was last built from ``identity``.

    ``changed`` is called before a folder is built again because the identity is another. A folder that ``read``
    cannot read (`OSError`, `ValueError`) is built again. Raises `CacheError` if the cache cannot be written.
    """
    name = hashlib.sha256(slot.encode(errors="surrogateescape")).hexdigest()[:24]
    key = f"{kind}-{name}"
    with locked(key):
        folder = cache_dir(kind) / name
        before = _identity(folder)
        if before == identity:
            try:
                value = read(folder)
                os.utime(folder)
                return value
            except (OSError, ValueError):  # damaged: as if it were not there
                pass
        elif before is not None:
            changed()
        with workspace(key) as built:
            with writing():
                build(built)
                (built / _IDENTITY).write_text(identity, encoding="utf-8")
            publish(built, folder)
        _tidy(folder.parent)
        return read(folder)


def _identity(folder: Path) -> str | None:
    try:
        return (folder / _IDENTITY).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _tidy(shelf: Path) -> None:
    folders = sorted((f for f in shelf.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime, reverse=True)
    for folder in folders[_KEPT:]:
        wipe(folder)
