"""A trace file: claimed before anything runs, begun with the first record, readable after every one.

Knows a path, JSON lines and gzip. Does not know what is in a record.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from sooner.errors import InvalidRequest

__all__ = ["TraceFile"]


class TraceFile:
    """A context manager over ``path``; compressed where that ends in ``.gz``.

    Opening proves that the file can be written, so that no answer is computed for nothing; what was in it stays until
    the first `write`, and a file that was made for nothing is removed again. Every record is in the file when `write`
    returns, except in a compressed one, which gives up its end if it is cut off. ``private``: a new file is for its
    owner's eyes. Raises `InvalidRequest` (``param`` "trace") if it cannot be opened or written.
    """

    def __init__(self, path: str | Path, *, private: bool = False) -> None:
        self.path = Path(path)
        self._new = not self.path.exists()
        self._lines: IO[str] | None = None
        try:
            mode = 0o600 if private else 0o666
            self._file = open(self.path, "ab", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise self._refusal(error) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record as a line, after emptying the file if it is the first."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        try:
            if self._lines is None:
                self._lines = self._begin()
            self._lines.write(line + "\n")
            if self.path.suffix != ".gz":
                self._lines.flush()
        except OSError as error:
            raise self._refusal(error) from error

    def close(self) -> None:
        """Close the file; remove it if nothing was written to a file that was not there before."""
        try:
            if self._lines is not None:
                self._lines.close()
            self._file.close()
        except OSError as error:
            raise self._refusal(error) from error
        finally:
            if self._new and self._lines is None:
                self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except InvalidRequest:
            if error is None:  # a failure to close must not hide what went wrong before it
                raise

    def _begin(self) -> IO[str]:
        if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.truncate(0)
        if self.path.suffix == ".gz":
            packed = gzip.GzipFile(filename="", mode="wb", fileobj=self._file, mtime=0)
            return io.TextIOWrapper(packed, encoding="utf-8", newline="\n", write_through=True)
        return io.TextIOWrapper(self._file, encoding="utf-8", newline="\n")

    def _refusal(self, error: OSError) -> InvalidRequest:
        reason = error.strerror or str(error)
        return InvalidRequest(f"the trace {self.path} cannot be written ({reason}): give another path", "trace")
