"""The text files that a user names as a corpus: which they are, whether they changed, which are text.

Knows paths, sizes and UTF-8. Does not know tokens.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sooner.errors import DraftError

__all__ = ["CorpusFiles", "find_files", "read_text"]

_MOST_FILES = 50_000

_HEAD = 8192
"""Bytes read first: enough to tell most binary files."""


@dataclass(frozen=True, slots=True)
class CorpusFiles:
    """``files`` in order; ``identity``: their paths, sizes and times of change, which tells whether an index of them is
    still true."""

    files: tuple[Path, ...]
    identity: str


def find_files(path: Path) -> CorpusFiles:
    """The file ``path``, or all regular files below it whose names do not begin with a dot, sorted by path.

    Raises `DraftError` if there is none, if it cannot be read, or if there are more than fifty thousand.
    """
    files: list[Path] = []
    identity: list[str] = []
    try:
        for file in _walk(path):
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):
                continue
            if len(files) == _MOST_FILES:
                raise DraftError(f"corpus {path} has more than {_MOST_FILES} files: name a smaller folder")
            files.append(file)
            identity.append(f"{file}\t{status.st_size}\t{status.st_mtime_ns}")
    except OSError as error:
        raise DraftError(f"corpus {path} cannot be read ({error.strerror or error}): check the path") from error
    if not files:
        raise DraftError(f"corpus {path} has no files: name a text file or a folder of them")
    return CorpusFiles(tuple(files), "\n".join(identity))


def _walk(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        path.stat()  # raises where there is nothing
        yield path
        return
    os.listdir(path)  # raises where it cannot be listed; folders below that cannot be are passed over
    for folder, names, files in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for name in sorted(files):
            file = Path(folder, name)
            if not name.startswith(".") and file.exists():  # a dangling link does not
                yield file


def read_text(file: Path, most_bytes: int) -> str | None:
    """The file as text; None if it has more than ``most_bytes``.

    Raises `ValueError` if it is binary (a zero byte, or not UTF-8), `OSError` if unreadable.
    """
    with file.open("rb") as data:
        head = data.read(_HEAD)
        if b"\0" in head:
            raise ValueError("binary")
        rest = data.read(max(0, most_bytes + 1 - len(head)))
    whole = head + rest
    if len(whole) > most_bytes:
        return None
    if b"\0" in rest:
        raise ValueError("binary")
    return whole.decode("utf-8-sig")
