"""A trace file: claimed before anything runs, begun with the first record, flushed with every one.

Knows a path and JSON lines. Does not know what is in a record.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sooner.errors import InvalidRequest

__all__ = ["TraceFile"]


class TraceFile:
    """A context manager over ``path``.

    Opening proves that the file can be written, so that no answer is computed for nothing; what was in it stays until
    the first `write`, and a file that was made for nothing is removed again. Raises `InvalidRequest` (``param``
    "trace") if it cannot be opened or written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._new = not self.path.exists()
        self._begun = False
        try:
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._refusal(error) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record as a line, after emptying the file if it is the first."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        try:
            if not self._begun and stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.truncate(0)
            self._begun = True
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise self._refusal(error) from error

    def close(self) -> None:
        """Close the file; remove it if nothing was written to a file that was not there before."""
        try:
            self._file.close()
        except OSError as error:
            raise self._refusal(error) from error
        finally:
            if self._new and not self._begun:
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

    def _refusal(self, error: OSError) -> InvalidRequest:
        reason = error.strerror or str(error)
        return InvalidRequest(f"the trace {self.path} cannot be written ({reason}): give another path", "trace")
