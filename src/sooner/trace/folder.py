"""A folder of traces that does not grow for ever: the newest stay, within a number of files and of bytes.

Knows names and sizes of the files it makes. Does not know what is in them; never touches another file.
"""

from __future__ import annotations

import re
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

from sooner.errors import InvalidRequest

__all__ = ["TraceFolder"]

_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}-\d+\.jsonl")


class TraceFolder:
    """``most_files`` and ``most_bytes`` of traces are kept under ``path``, the newest at least. It is made if it is not
    there, for its owner alone. Raises `InvalidRequest` (``param`` "trace_dir") if traces cannot be kept in it."""

    def __init__(self, path: str | Path, *, most_files: int = 1000, most_bytes: int = 1 << 30) -> None:
        self.path = Path(path)
        self._most_files, self._most_bytes = most_files, most_bytes
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = self.path / ".sooner-probe"
            probe.touch()
            probe.unlink()
            found = sorted(one for one in self.path.iterdir() if _NAME.fullmatch(one.name))
            self._kept = deque((one, one.stat().st_size) for one in found)
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"no traces can be kept in {self.path} ({reason}): give another --trace-dir"
            raise InvalidRequest(message, "trace_dir") from None
        self._bytes = sum(size for _, size in self._kept)

    def within(self, name: str) -> TraceFolder:
        """A folder in this one for another process, with the same bounds."""
        return TraceFolder(self.path / name, most_files=self._most_files, most_bytes=self._most_bytes)

    def new(self, number: int) -> Path:
        """Where trace ``number`` of this process is to be written; names sort by time."""
        return self.path / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{number}.jsonl"

    def keep(self, path: Path) -> int:
        """A trace is complete: make room for it; returns how many older ones were dropped."""
        size = path.stat().st_size if path.exists() else 0
        self._kept.append((path, size))
        self._bytes += size
        dropped = 0
        while len(self._kept) > 1 and (len(self._kept) > self._most_files or self._bytes > self._most_bytes):
            oldest, freed = self._kept.popleft()
            oldest.unlink(missing_ok=True)
            self._bytes -= freed
            dropped += 1
        return dropped
