"""One sequence's text in another model's tokens, following the target's tokens as they grow.

Knows both tokenizers. Does not know models, and cannot be wrong in a way that matters: what it gets wrong costs
acceptance, never text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence

from sooner.text import TextCodec

__all__ = ["Transcript", "whole_characters"]

_OPEN = 256
"""Characters at the end of a text that are tokenised anew at every step: what follows may change how they fall."""

_LONGEST = 2048
"""Open characters at which the text is cut wherever that is, if no cut was found that changes nothing."""


class Transcript:
    """The target's tokens so far as the other tokenizer would write their text.

    ``control``: target ids that are no text -> the other's ids for them; those without one are left out. The end of
    the text is tokenised anew each time, and closed where the tokens before and after the cut are those without it.
    """

    def __init__(self, ours: TextCodec, theirs: TextCodec, control: Mapping[int, int]) -> None:
        self._ours = ours
        self._theirs = theirs
        self._control = control
        self._count = 0
        self._closed: list[int] = []
        self._begun = False
        self._tail = b""

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The other model's ids for all of ``tokens``, which continue those of the last call."""
        for token in tokens[self._count :]:
            data = self._ours.token_bytes(token)
            if data:
                self._tail += data if self._begun or self._tail else self._first(token, data)
            elif token in self._control:
                self._close(whole_characters(self._tail))
                self._closed.append(self._control[token])
        self._count = len(tokens)
        text = whole_characters(self._tail)
        ids = self._encode(text)
        if len(text) > _OPEN:
            self._cut(text, ids)
            ids = self._encode(whole_characters(self._tail))
        return self._closed + ids

    def _first(self, token: int, data: bytes) -> bytes:
        """A text's first token: a SentencePiece begins with a space that is not the text's."""
        return data if self._ours.decode((token,)) == data.decode("utf-8", "replace") else data.removeprefix(b" ")

    def _encode(self, text: str) -> list[int]:
        return self._theirs.encode(text, bos=not self._begun) if text or not self._begun else []

    def _close(self, text: str) -> None:
        self._closed += self._encode(text)
        self._begun = True
        self._tail = b""

    def _cut(self, text: str, ids: list[int]) -> None:
        """Close the first half, at a place where that changes nothing (a SentencePiece puts a space back in front)."""
        rest = self._tail[len(text.encode()) :]
        for at in _cuts(text):
            head = self._encode(text[:at])
            for after in (text[at:], text[at:].removeprefix(" ")):
                if head + self._theirs.encode(after, bos=False) == ids:
                    self._close(text[:at])
                    self._tail = after.encode() + rest
                    return
        if len(text) > _LONGEST:
            self._close(text)
            self._tail = rest


def _cuts(text: str) -> Iterator[int]:
    """A few places near the middle, spaces first."""
    middle = len(text) // 2
    at = middle
    for _ in range(4):
        at = text.find(" ", at + 1)
        if at < 0:
            break
        yield at
    yield middle


def whole_characters(data: bytes) -> str:
    """``data`` as text without the character that is not finished yet; what is no UTF-8 at all becomes U+FFFD."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)
