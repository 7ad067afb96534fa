"""Stop strings over a growing text. Knows characters; knows no tokens, drafts or models."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """Finds the first stop string in a text that arrives in pieces, and holds back what may yet become one.

    ``push`` returns the text that is certain now. After a match ``matched`` is the string found, and everything
    from it on (or after it, with ``include``) is gone. However the text is cut into pieces, the result is the same:
    the match that *ends* first wins, and of those the one that starts first.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Add a piece; returns what may be emitted. Nothing is emitted after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        found = self._find(text)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[: start + len(self.matched)] if self._include else text[:start]
        keep = self._in_doubt(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text ended: release what was held back."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        hits = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not hits:
            return None
        _, start, stop = min(hits)
        return start, stop

    def _in_doubt(self, text: str) -> int:
        """The length of the longest tail of ``text`` that begins some stop string."""
        longest = min(len(text), max(len(stop) for stop in self._stops) - 1)
        for n in range(longest, 0, -1):
            tail = text[len(text) - n :]
            if any(stop.startswith(tail) for stop in self._stops):
                return n
        return 0
