"""A tokenizer as llguidance wants to see it. Knows the bytes of tokens; does not know grammars."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from sooner.errors import MissingExtra
from sooner.text import TextCodec

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["library", "tokenizer_of"]


def library() -> ModuleType:
    """llguidance. Raises `MissingExtra`."""
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtra("a grammar for texts", "serve") from error
    return llguidance


def tokenizer_of(codec: TextCodec) -> LLTokenizer:
    """The library's view of ``codec``, which must have tokens that end a text. Raises `MissingExtra`."""
    return _tokenizer_of(cast(Hashable, codec))  # codecs are told apart by identity, which the contract need not say


@lru_cache(maxsize=4)
def _tokenizer_of(codec: Any) -> LLTokenizer:
    """Remembered, because it is a pure function of the codec that takes most of a second."""
    tokenizer: LLTokenizer = library().LLTokenizer(_Vocabulary(codec), eos_token=sorted(codec.eos_ids))
    return tokenizer


class _Vocabulary:
    """Every token's bytes, and text to tokens for what a grammar forces."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, codec: TextCodec) -> None:
        self.eos_token_id = min(codec.eos_ids)
        self.tokens = [codec.token_bytes(id) for id in range(codec.vocab_size)]
        self.special_token_ids = [id for id, data in enumerate(self.tokens) if not data]
        self._codec = codec

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids that the tokenizer itself would choose for ``text`` in the middle of a text."""
        data = text.encode() if isinstance(text, str) else text
        text = data.decode("utf-8", "replace")
        ids = self._codec.encode(text, bos=False)
        if self._bytes(ids) == data:
            return ids
        anchor = self._codec.encode("\n", bos=False)  # SentencePiece puts a space in front of what it encodes
        ids = self._codec.encode("\n" + text, bos=False)[len(anchor) :]
        return ids if self._bytes(ids) == data else self._greedy(data)

    def _bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.tokens[id] for id in ids)

    def _greedy(self, data: bytes) -> list[int]:
        """The longest token at each place: for what the tokenizer itself does not write."""
        ids: list[int] = []
        while data:
            size = next((n for n in range(min(self._longest, len(data)), 0, -1) if data[:n] in self._places), 0)
            if not size:
                break
            ids.append(self._places[data[:size]])
            data = data[size:]
        return ids

    @cached_property
    def _places(self) -> dict[bytes, int]:
        return {token: id for id, token in reversed(list(enumerate(self.tokens)))}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.tokens))
