"""How tokens read, so that a trace needs no tokenizer: each token's text in a record before its first use.

Knows a token's bytes and name. Does not know steps or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sooner.text import TextCodec

__all__ = ["PieceWriter", "Pieces", "bytes_of"]

Piece = str | list[int] | dict[str, str]
"""A token's text; its bytes where they are not whole characters; its name where it has no text."""


class PieceWriter:
    """Makes ``tokens`` records; remembers which tokens have had one."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._known: set[int] = set()

    def record(self, ids: Iterable[int]) -> dict[str, Any] | None:
        """The record that has to stand before a record with ``ids`` in it; None if all are known."""
        new = sorted(set(ids) - self._known)
        self._known.update(new)
        return {"type": "tokens", "pieces": {str(id): self._piece(id) for id in new}} if new else None

    def _piece(self, id: int) -> Piece:
        data = self._codec.token_bytes(id)
        if not data:
            name = getattr(self._codec, "token_name", None)
            return {"name": name(id) if name is not None else ""}
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return list(data)


class Pieces:
    """The pieces read so far. ``eos_ids``: the tokens that end a text. A token without a piece has no bytes."""

    def __init__(self, eos_ids: Iterable[int] = ()) -> None:
        self.eos_ids = frozenset(eos_ids)
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, str] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in a ``tokens`` record. Raises `ValueError` or `TypeError` for what is none."""
        for id, piece in record["pieces"].items():
            self._bytes[int(id)] = bytes_of(piece)
            if isinstance(piece, dict) and piece.get("name"):
                self._names[int(id)] = str(piece["name"])

    def token_bytes(self, id: int) -> bytes:
        """What token ``id`` adds to the text."""
        return self._bytes.get(id, b"")

    def token_name(self, id: int) -> str:
        """The name of a control token, empty for others."""
        return self._names.get(id, "")


def bytes_of(piece: object) -> bytes:
    """A piece's bytes. Raises `ValueError` or `TypeError` for what is no piece."""
    if isinstance(piece, str):
        return piece.encode("utf-8", "replace")
    if isinstance(piece, list):
        return bytes(piece)
    if isinstance(piece, dict):
        return b""
    raise TypeError(f"a piece is text, bytes or a name, not {type(piece).__name__}")
