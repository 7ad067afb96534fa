"""A draft in another model's tokens read as a draft in the target's, by way of the text between them.

Knows both tokenizers. Does not know models. What it gets wrong costs acceptance, never text.
(String-level match: Timor et al. 2502.05202, section 3.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sooner.draft.transcript import whole_characters
from sooner.protocols import Context
from sooner.text import TextCodec
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Probabilities

__all__ = ["Retokeniser"]

_BEHIND = 8
"""Known tokens tokenised together with the draft, so that its first token falls as it does in the running text."""

_UNFINISHED = 0.8
"""How sure the last token of a drafted text is to end where the draft ends: the next one may still join it."""


class Retokeniser:
    """From ``theirs`` to ``ours``; ``pairs`` is `vocabulary.shared_tokens`."""

    def __init__(self, ours: TextCodec, theirs: TextCodec, pairs: NDArray[np.int64]) -> None:
        self._ours = ours
        self._theirs = theirs
        self._firsts = {int(pair): id for id, pair in enumerate(pairs) if pair >= 0}
        self._control = {there: here for there, here in self._firsts.items() if not theirs.token_bytes(there)}

    def read(self, context: Context, draft: Draft) -> Draft:
        """The texts of ``draft`` as paths of the target's tokens, ``context.budget`` nodes at most: leaves first,
        the deepest first, then what ends before them, since a longer piece may hide the token that comes."""
        if not len(draft):
            return EMPTY_DRAFT
        behind = self._behind(context.tokens)
        nodes: dict[tuple[int, int], int] = {}
        confidence: list[float] = []
        goes_on = _goes_on(draft)
        for end in sorted(range(len(draft)), key=lambda node: (goes_on[node] > 0.0, -len(draft.path(node)))):
            at = ROOT
            for token, chance in self._path(behind, draft, end, 1.0 - goes_on[end]):
                known = nodes.get((at, token))
                if known is None and len(nodes) == context.budget:
                    break
                if known is None:
                    known = nodes[at, token] = len(nodes)
                    confidence.append(chance)
                at = known
                confidence[at] = max(confidence[at], chance)
        if not nodes:
            return EMPTY_DRAFT
        parents, tokens = zip(*nodes, strict=True)
        return Draft(tokens, parents, tuple(confidence), (draft.sources[0],) * len(tokens))

    def noise(self, context: Context) -> Callable[[int, Sequence[int]], Probabilities]:
        """The target's noise for the draft's ids: that of the first token in which the target would write theirs.

        Positions are those of the draft's tokens, so it is the right noise as long as tokens fall one to one.
        """
        target = context.noise
        assert target is not None

        def noise(position: int, ids: Sequence[int]) -> Probabilities:
            firsts = np.array([self._first(id) for id in ids])
            values = np.asarray(target(position, np.maximum(firsts, 0).tolist()))
            return np.where(firsts < 0, 1.0, values)

        return noise

    def _first(self, id: int) -> int:
        known = self._firsts.get(id)
        if known is None:
            ids = self._ours.encode(whole_characters(self._theirs.token_bytes(id)), bos=False)
            known = self._firsts[id] = ids[0] if ids else -1
        return known

    def _behind(self, tokens: Sequence[int]) -> bytes:
        """The text of the last known tokens, from the start of a character on, back to a control token at most."""
        data = b""
        for token in reversed(tokens[-_BEHIND:]):
            piece = self._ours.token_bytes(token)
            if not piece:
                break
            data = piece + data
        start = 0
        while start < len(data) and data[start] & 0xC0 == 0x80:
            start += 1
        return data[start:]

    def _path(self, behind: bytes, draft: Draft, last: int, stops: float) -> Iterator[tuple[int, float]]:
        """The target's tokens for the text down to ``last``, each with its chance; with chance ``stops`` the text does
        not go on as drafted there."""
        data, starts, chances, end = b"", [], [], None
        for node in draft.path(last):
            token = draft.tokens[node]
            piece = self._theirs.token_bytes(token)
            if not piece:
                end = (self._control.get(token), draft.confidence[node])
                break
            starts.append(len(data))
            chances.append(draft.confidence[node])
            data += piece
        ids = self._tokenise(behind, data)
        done = used = 0
        for i, id in enumerate(ids):
            done += len(self._ours.token_bytes(id))
            chance = 1.0 if end or i < len(ids) - 1 else min(_UNFINISHED, stops)
            while used < len(starts) and starts[used] < done:
                chance *= chances[used]
                used += 1
            yield id, chance
        if end is not None and end[0] is not None:
            yield end[0], end[1]

    def _tokenise(self, behind: bytes, data: bytes) -> list[int]:
        """The tokens of ``data`` in the text ``behind + data``; of ``data`` alone where one token would span both."""
        text = whole_characters(behind + data)
        ids = self._ours.encode(text, bos=False)
        size = len(text.encode()) - len(behind)
        at = len(ids)
        while at > 0 and size > 0:  # from the end, since a SentencePiece adds a space in front
            at -= 1
            size -= len(self._ours.token_bytes(ids[at]))
        return ids[at:] if size == 0 else self._ours.encode(whole_characters(data), bos=False)


def _goes_on(draft: Draft) -> list[float]:
    """For each node, how sure it is that one of its children follows; 0 for leaves."""
    found = [0.0] * len(draft)
    for parent, chance in zip(draft.parents, draft.confidence, strict=True):
        if parent != ROOT:
            found[parent] = min(found[parent] + max(chance, 1e-6), 1.0)
    return found
