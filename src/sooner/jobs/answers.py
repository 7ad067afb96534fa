"""The files a batch writes: answers in the jobs' order, dead lines beside them, and where to go on after a kill.

Knows JSON lines on disk. Does not know prompts, models or how an answer comes about.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from filelock import FileLock, Timeout

from sooner.errors import InvalidRequest

__all__ = ["Answers", "Place"]

_TAIL = 64 * 1024
"""Bytes read back at a time while looking for a file's last complete line."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far a run came: its last ``line`` (0: none), that line's ``digest``, and the ``run`` that wrote it."""

    line: int = 0
    digest: str = ""
    run: str = ""


class Answers:
    """A context manager over ``out`` and the dead lines' file beside it. Every line is flushed as it is written, so a
    kill costs at most the line that was being written: opening again cuts it off.

    ``mode``: "new" refuses a file with something in it; "resume" goes on in it; "overwrite" empties both files, once
    `begin` is called. Raises `InvalidRequest` naming the remedy.
    """

    def __init__(self, out: Path, mode: Literal["new", "resume", "overwrite"] = "new") -> None:
        self.out = out
        self.dead = out.with_name(f"{out.stem}.errors{out.suffix or '.jsonl'}")
        self._mode = mode
        self._files: list[Any] = []
        self._run = ""
        if out.is_dir() or not out.parent.is_dir():
            raise InvalidRequest(
                f"{out} cannot be written ({'a folder' if out.is_dir() else 'no such folder'}): give another -o"
            )
        self._lock = FileLock(out.with_name(f".{out.name}.lock"))
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InvalidRequest(f"{out} is being written by another run: wait for it, or give another -o") from None
        except OSError as error:
            raise self._refusal(error) from None
        try:
            self.place = self._look()
        except OSError as error:
            self._unlock()
            raise self._refusal(error) from None
        except InvalidRequest:
            self._unlock()
            raise

    def begin(self, run: str) -> None:
        """Open the files for the answers of ``run``: what they depend on besides the lines, as a digest. A file that is
        resumed must have been written under the same."""
        if self.place.line and self.place.run != run:
            raise InvalidRequest(
                f"{self.out} was written by another model or under other options: give those, or --overwrite"
            )
        self._run = run
        mode = "w" if self._mode == "overwrite" else "a"
        try:
            for path in (self.out, self.dead):
                # half a surrogate pair, which only an escape can hold, is written as that escape
                self._files.append(path.open(mode, encoding="utf-8", errors="backslashreplace"))
        except OSError as error:
            raise self._refusal(error) from None

    def write(self, line: int, digest: str, record: Mapping[str, Any]) -> None:
        """Append the answer to ``line``."""
        self._append(0, {"line": line, **record, "input": digest, "run": self._run})

    def bury(self, line: int, digest: str, name: str, reason: str, raw: str) -> None:
        """Append a dead line."""
        record = {"line": line, "id": name, "error": reason, "raw": raw, "input": digest, "run": self._run}
        self._append(1, record)

    def close(self) -> None:
        """Close both files; one that nothing was written to goes."""
        for file in self._files:
            with suppress(OSError):  # every line was flushed: what cannot be written now was refused then
                file.close()
            path = Path(file.name)
            if path.is_file() and not path.stat().st_size:
                path.unlink()
        self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _look(self) -> Place:
        """The place to go on from, both files cut behind their last complete lines."""
        places = [Place()]
        for path in (self.out, self.dead):
            if self._mode != "overwrite" and path.exists() and path.stat().st_size:
                if self._mode == "new":
                    raise InvalidRequest(f"{path} holds another run's answers: add --resume or --overwrite")
                places.append(_mend(path))
        return max(places, key=lambda found: found.line)

    def _append(self, which: int, record: Mapping[str, Any]) -> None:
        file = self._files[which]
        try:
            file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
            file.flush()
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidRequest(f"{file.name} cannot be written ({reason}): make room, then --resume") from None

    def _refusal(self, error: OSError) -> InvalidRequest:
        return InvalidRequest(f"{self.out} cannot be written ({error.strerror or error}): give another -o")

    def _unlock(self) -> None:
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)


def _mend(path: Path) -> Place:
    """Cut off what follows the last complete line of ``path``; returns where that line stands. Raises `InvalidRequest`
    and leaves the file alone if it is none of ours."""
    with path.open("rb+") as file:
        size = file.seek(0, 2)
        end = _newline_before(file, size)
        start = _newline_before(file, end - 1)
        file.seek(start)
        place = _place(file.read((end or size) - start), whole=end > 0)
        if place is None:
            raise InvalidRequest(f"{path} was not written by sooner batch: give another -o, or --overwrite")
        file.truncate(end)
    return place


def _place(line: bytes, *, whole: bool) -> Place | None:
    """Where ``line`` stands, None if it is none of ours; of a first line that was cut short little can be asked."""
    if not whole:
        return Place() if b'{"line":'.startswith(line[:8]) else None
    try:
        record = json.loads(line)
        return Place(int(record["line"]), str(record["input"]), str(record["run"]))
    except (ValueError, KeyError, TypeError):
        return None


def _newline_before(file: Any, end: int) -> int:
    """Where the line that holds byte ``end - 1`` begins, were there no newline at ``end - 1``: behind the last newline
    before ``end``; 0 if there is none."""
    while end > 0:
        start = max(0, end - _TAIL)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return int(start + found + 1)
        end = start
    return 0
