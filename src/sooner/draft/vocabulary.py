"""Two vocabularies side by side: whether they are the same, where they first differ, and which tokens they share.

Knows what tokens add to a text and how control tokens are written. Does not know models or drafting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sooner.protocols import Target
from sooner.text import TextCodec
from sooner.types import Logits

__all__ = ["Pair", "Same", "first_difference", "meaning", "shared_tokens"]

Key = bytes | str
"""What makes two tokens the same: their bytes, or, for those that are no text, how they are written."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft model for it, each with its tokenizer."""

    target: Target
    ours: TextCodec
    model: Target
    theirs: TextCodec


class Same:
    """The tongue of a model with the target's own vocabulary; either head may be padded (`levels.Tongue`)."""

    def __init__(self, vocab_size: int, model_size: int) -> None:
        self._vocab_size = vocab_size
        self._model_size = model_size

    def row(self, row: Logits) -> Logits:
        """The row cut to the target's length, or padded with -inf."""
        missing = self._vocab_size - self._model_size
        if missing > 0:
            return np.concatenate([row, np.full(missing, -np.inf, np.float32)])
        return row[: self._vocab_size]

    def ids(self, token: int) -> Sequence[int]:
        """The token itself."""
        return (token,)

    def known(self, tokens: Sequence[int]) -> Sequence[int]:
        """The text as the model can read it: an id beyond its head, which only padding can be, becomes its last."""
        if self._model_size >= self._vocab_size:
            return tokens
        return [min(token, self._model_size - 1) for token in tokens]


def first_difference(ours: TextCodec, theirs: TextCodec) -> int | None:
    """The lowest id that means one thing here and another there; None if there is none.

    Ids that one of them lacks are padding: heads are often rounded up, and unused ids named by one side only.
    """
    for id in range(min(ours.vocab_size, theirs.vocab_size)):
        if meaning(ours, id) != meaning(theirs, id):
            return id
    return None


def shared_tokens(ours: TextCodec, theirs: TextCodec) -> NDArray[np.int64]:
    """``[V]``: the id there of each token here, -1 where it has none; no id there is used twice.

    Of several tokens with the same bytes, the one that the tokenizer writes counts (a byte fallback reads as a letter
    does). One end of text stands for the other.
    """
    there = _by_key(theirs)
    pairs = np.full(ours.vocab_size, -1, np.int64)
    for key, id in _by_key(ours).items():
        pairs[id] = there.get(key, -1)
    taken = set(pairs.tolist())
    ends = (end for end in sorted(theirs.eos_ids) if end not in taken)
    for end in sorted(ours.eos_ids):
        if end < len(pairs) and pairs[end] < 0:
            pairs[end] = next(ends, -1)
    return pairs


def _by_key(codec: TextCodec) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for id in range(codec.vocab_size):
        key = meaning(codec, id)
        if key in found and isinstance(key, bytes):
            written = codec.encode(key.decode("utf-8", "ignore"), bos=False)
            if written != [id]:
                continue
        if key:
            found[key] = id
    return found


def meaning(codec: TextCodec, id: int) -> Key:
    """The bytes of a token; of one that is no text, how it is written."""
    data = codec.token_bytes(id)
    if data:
        return data
    name = getattr(codec, "token_name", None)
    return str(name(id)) if name is not None else ("end" if id in codec.eos_ids else "")
