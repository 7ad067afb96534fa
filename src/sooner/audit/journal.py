"""The state of an unfinished audit: a file of finished units, one a line, from which a killed audit goes on.

Knows lines and keys. Does not know what a unit is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sooner.store.cache import cache_dir, locked, writing

__all__ = ["Journal", "open_journal"]

_SCHEMA = 1


class Journal:
    """Finished units by key. What `keep` was given survives the death of the process at any point; without a ``path``
    that of the journal alone. ``resumed``: units found at the start."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._found = _read(path) if path is not None else {}
        self.resumed = len(self._found)
        if path is None:
            return
        if not self._found:
            with writing():
                path.write_text(json.dumps({"schema": _SCHEMA}) + "\n", encoding="utf-8")
        else:
            _end_line(path)

    def get(self, key: str) -> Any:
        """The result of a finished unit; None for others."""
        return self._found.get(key)

    def keep(self, key: str, result: Any) -> None:
        """Append a finished unit. Raises `CacheError` where it cannot be written."""
        self._found[key] = result
        if self.path is None:
            return
        with writing(), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, result]) + "\n")

    def done(self) -> None:
        """The audit is told: the next one begins anew."""
        if self.path is not None:
            with writing():
                self.path.unlink(missing_ok=True)


@contextmanager
def open_journal(key: str, *, restart: bool = False, waiting: Callable[[], None] = lambda: None) -> Iterator[Journal]:
    """The state of the audit ``key``, held by one process at a time; ``restart`` forgets what it has. ``waiting`` is
    called once if another process holds it."""
    with locked(f"audit-{key}", waiting):
        path = cache_dir("audits") / f"{key}.jsonl"
        if restart:
            with writing():
                path.unlink(missing_ok=True)
        yield Journal(path)


def _read(path: Path) -> dict[str, Any]:
    """The complete lines of a state file; none of one that is damaged at its head or of another version."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return {}
    if _parsed(lines[0]) != {"schema": _SCHEMA}:
        return {}
    entries = [_parsed(line) for line in lines[1:]]
    return {str(entry[0]): entry[1] for entry in entries if isinstance(entry, list) and len(entry) == 2}


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # cut off in mid-line
        return None


def _end_line(path: Path) -> None:
    """Begin what is appended on a line of its own, whatever a kill left behind."""
    with writing(), path.open("rb+") as file:
        if file.seek(0, 2) and file.seek(-1, 2) >= 0 and file.read(1) != b"\n":
            file.write(b"\n")
