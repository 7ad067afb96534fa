"""Reads a trace of any length record by record, and says in a line what is wrong with a file that is none.

Knows files, JSON lines, gzip and which fields a record must have. Does not know what records mean.
"""

from __future__ import annotations

import io
import json
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Self

from sooner.errors import InvalidRequest
from sooner.trace.check import check_step
from sooner.trace.pieces import Pieces
from sooner.trace.record import SCHEMA

__all__ = ["Trace"]

_LONGEST = 1 << 24
"""Bytes of a line: a header with a prompt of a million tokens has fewer."""


class Trace:
    """A context manager over one trace file, plain or gzip'ed. Holds one record at a time, and the tokens' pieces.

    ``header`` is there at once; iterating (once) gives the step records in order, each after its tokens' ``pieces``;
    then ``footer`` is the last record, or None where the trace was cut off. Raises `InvalidRequest` naming file and
    line for what is no trace, or not one that this version can read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.footer: dict[str, Any] | None = None
        self._line = 0
        self._more = True
        try:
            kind = self.path.stat().st_mode
            if stat.S_ISDIR(kind):
                raise InvalidRequest(f"{self.path} is a folder: name one of the traces in it")
            if not stat.S_ISREG(kind):  # commands that read a trace twice could not
                raise InvalidRequest(f"{self.path} is no file: save the trace to one first")
            self._file = open(self.path, "rb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            reason = error.strerror or str(error)
            raise InvalidRequest(f"{self.path} cannot be read ({reason}): check the path") from None
        try:
            self._lines = self._unpacked()
            self.header = self._header()
            self.pieces = Pieces(self.header.get("eos_ids") or ())
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (record := self._next()) is not None:
            kind = record.get("type")
            if kind == "step":
                if reason := check_step(record):
                    self._refuse(f"is no step of trace schema {SCHEMA} (see {reason}): record the trace again")
                yield record
            elif kind == "tokens":
                self._learn(record)
            elif kind == "footer":
                self.footer = record
            elif kind == "header":
                self._refuse("begins another trace: keep one trace in a file")

    def skip(self) -> None:
        """Go to the end without looking at anything but the footer."""
        last = b""
        while line := self._read():
            last = line if line.strip() else last
        if last:
            self.footer = record if (record := _parsed(last)) and record.get("type") == "footer" else None

    # -- lines ---------------------------------------------------------------------------------------------------

    def _unpacked(self) -> IO[bytes]:
        start = self._file.peek(2)[:2]
        if start == b"\x1f\x8b":
            return io.BufferedReader(_Unpacked(self._file), 1 << 16)
        return self._file

    def _read(self) -> bytes:
        """The next line; empty at the end, which may be that of a file that was cut off."""
        if not self._more:
            return b""
        try:
            line = self._lines.readline(_LONGEST + 1)
        except OSError as error:
            raise InvalidRequest(f"{self.path} cannot be read ({error.strerror or error}): copy it again") from None
        self._line += 1
        self._more = bool(line)
        if len(line) > _LONGEST:
            self._refuse(f"is longer than {_LONGEST >> 20} MB: this is no trace; sooner run --trace FILE records one")
        return line

    def _next(self) -> dict[str, Any] | None:
        """The next record; None at the end, and before a last line that was cut off."""
        while line := self._read():
            if not line.strip():
                continue
            record = _parsed(line)
            if record is not None:
                return record
            at = self._line
            while line := self._read():
                if line.strip():
                    self._line = at
                    self._refuse("is damaged, and others follow it: copy the file again, or cut it off there")
        return None

    def _header(self) -> dict[str, Any]:
        line = self._read().removeprefix(b"\xef\xbb\xbf")
        if not line:
            what = "is empty" if self.path.stat().st_size == 0 else "holds nothing that can be read"
            raise InvalidRequest(f"{self.path} {what}: record a trace with sooner run --trace FILE")
        record = _parsed(line) if line.lstrip().startswith(b"{") else None
        if record is None or record.get("type") != "header":
            raise InvalidRequest(
                f"{self.path} is no trace (its first line is no header): sooner run --trace FILE records one"
            )
        schema = record.get("schema")
        if not isinstance(schema, int) or schema < 1:
            raise InvalidRequest(f"{self.path} has no trace schema: sooner run --trace FILE records a trace that has")
        if schema > SCHEMA:
            raise InvalidRequest(
                f"{self.path} has trace schema {schema} and this version reads up to {SCHEMA}: "
                'upgrade with pip install -U "sooner"'
            )
        return record

    def _learn(self, record: Mapping[str, Any]) -> None:
        try:
            self.pieces.add(record)
        except (AttributeError, KeyError, TypeError, ValueError):
            self._refuse("has no pieces of tokens: record the trace again")

    def _refuse(self, message: str) -> NoReturn:
        raise InvalidRequest(f"{self.path}, line {self._line}, {message}")


class _Unpacked(io.RawIOBase):
    """The bytes of a gzip file as far as they can be unpacked: one that was cut off ends there."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._packed = b""
        self._inflate = zlib.decompressobj(wbits=31)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer``; returns how far, 0 at the end."""
        data, size = b"", len(buffer)
        while not data:
            if self._inflate.eof:
                self._packed, self._inflate = self._inflate.unused_data, zlib.decompressobj(wbits=31)
            packed = self._packed or self._file.read(1 << 16)
            try:
                data = self._inflate.decompress(packed, size)
            except zlib.error:
                return 0
            self._packed = self._inflate.unconsumed_tail
            if not packed and not data:
                return 0
        buffer[: len(data)] = data
        return len(data)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None for anything else."""
    try:
        record = _DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return record if isinstance(record, dict) else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
