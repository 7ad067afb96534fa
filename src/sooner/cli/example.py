"""The worked example: one Korean sentence, a draft that is half right, and a target that corrects it.

Knows eight words and what a toy target writes after each. The engine, the drafter and the verification are the real
ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sooner.control.fixed import FixedController
from sooner.draft import create_drafter
from sooner.engine import Engine
from sooner.targets.toy import ToyTarget
from sooner.text import Detokenizer

__all__ = ["CONTEXT", "DRAFT", "PROMPT", "TARGET_TEXT", "WordCodec", "example_engine"]

PROMPT = "오늘 날씨가"
"""What is given. The target itself writes the next word; drafting begins after a text's first token."""

CONTEXT = "오늘 날씨가 매우"
DRAFT = "좋고 화창합니다."
TARGET_TEXT = "좋고 맑습니다."

_WORDS = ("", "오늘", " 날씨가", " 매우", " 좋고", " 화창합니다.", " 맑습니다.", " 춥습니다.")
_NEXT = {" 날씨가": " 매우", " 매우": " 좋고", " 좋고": " 맑습니다.", " 맑습니다.": ""}
"""What the target writes after each word; the empty word ends the text."""


class WordCodec:
    """A tokenizer whose tokens are whole words with the space before them (`text.TextCodec`). Token 0 ends a text."""

    vocab_size = len(_WORDS)
    eos_ids = frozenset({0})

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        """The ids of a text made of known words. Raises `ValueError` at an unknown one."""
        words = text.replace(" ", "\0 ").strip("\0").split("\0") if text else []
        return [_WORDS.index(word) for word in words]

    def decode(self, ids: Iterable[int]) -> str:
        """The words, joined."""
        return "".join(_WORDS[i] for i in ids)

    def token_bytes(self, id: int) -> bytes:
        """A word in UTF-8; nothing for ids outside the list."""
        return _WORDS[id].encode() if 0 <= id < len(_WORDS) else b""

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental decoder."""
        return Detokenizer(self.token_bytes)


def example_engine() -> Engine:
    """The toy target with the drafter ``given``, which drafts what the request expects, two words a pass."""
    table: dict[tuple[int, ...], list[float]] = {
        (_WORDS.index(word),): _row(following) for word, following in _NEXT.items()
    }
    target = ToyTarget(len(_WORDS), order=1, table=table)
    return Engine(target, WordCodec(), drafter=create_drafter("given"), controller=FixedController(2), name="toy")


def _row(word: str) -> list[float]:
    """Logits under which ``word`` is by far the likeliest."""
    row = np.zeros(len(_WORDS))
    row[_WORDS.index(word)] = 8.0
    return [float(value) for value in row]
