"""What this engine was prompted with and has written before, as far as it fits a bound, for the next text to copy.

Knows the tokens of past and present sequences, apart by salt. Does not know files or any model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sooner.draft.continuations import grow_continuations
from sooner.draft.one_by_one import OneByOne
from sooner.draft.options import at_least
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["MemoryDrafter"]

_RECENT = 16
"""Occurrences kept of each run of ``min_match`` tokens, the latest."""

_AT_ONCE = 128
"""Tokens learned per proposal: a long prompt is learned over some steps, so that none is held up."""

_SHARED = 8
"""Latest texts of the same salt with which a new one may share its beginning."""


class _Text:
    """One sequence's tokens from position ``base``; the runs that end in (``start``, ``end``] are in the index."""

    __slots__ = ("base", "end", "live", "salt", "source", "start", "tokens")

    def __init__(self, salt: str, source: Sequence[int], start: int) -> None:
        self.salt = salt
        self.source: Sequence[int] = source
        self.tokens: list[int] = list(source[:start])
        self.base = 0
        self.start = self.end = start
        self.live = True

    def slice(self, begin: int, end: int) -> list[int]:
        """The tokens at these positions, as far as they are held."""
        return self.tokens[max(0, begin - self.base) : max(0, end - self.base)]

    def trim(self, before: int) -> None:
        """Let go of what lies more than ``before`` tokens before the index."""
        base = max(self.base, self.start - before)
        del self.tokens[: base - self.base]
        self.base = base


_Index = dict[tuple[int, ...], deque[tuple[_Text, int]]]


class MemoryDrafter(OneByOne):
    """Copies from earlier texts (the global half of SuffixDecoding, 2411.04975), by hash of the last tokens.

    ``max``: most nodes; ``depth``: deepest; ``min_match``: tokens that must match (longer matches are preferred, up to
    ``max_match``); ``size``: tokens remembered, about 350 bytes each; the oldest go first. Texts are shared between
    sequences of equal salt only. A text that begins as an earlier one did is remembered from where they part.
    """

    name = "memory"

    def __init__(
        self, *, max: int = 8, depth: int = 6, min_match: int = 3, max_match: int = 32, size: int = 100_000
    ) -> None:
        self._max = at_least(1, max=max)
        self._depth = at_least(1, depth=depth)
        self._order = at_least(1, min_match=min_match)
        self._longest = at_least(min_match, max_match=max_match)
        self._size = at_least(1, size=size)
        self._texts: deque[_Text] = deque()
        self._live: dict[int, _Text] = {}
        self._index: dict[str, _Index] = {}
        self._total = 0

    def __len__(self) -> int:
        """Tokens remembered."""
        return self._total

    def forget(self, id: int) -> None:
        """The sequence ended: learn the rest of it and keep it for others."""
        text = self._live.pop(id, None)
        if text is not None:
            self._learn(text, len(text.source))
            text.live = False
            text.source = ()
            self._trim(text)

    def _propose(self, context: Context) -> Draft:
        text = self._read(context)
        budget = min(self._max, context.budget)
        if budget < 1:
            return EMPTY_DRAFT
        depth = min(self._depth, budget)
        length, found = self._find(context, text, depth)
        return grow_continuations(context, found, length, budget=budget, depth=depth, source=self.name)

    def _find(self, context: Context, own: _Text, depth: int) -> tuple[int, list[list[int]]]:
        """The longest match in other texts and what followed each of its occurrences."""
        tail = list(context.tokens[-self._longest :])
        places = self._index.get(context.salt, {}).get(tuple(tail[-self._order :]), ()) if tail else ()
        best = 0
        found: list[list[int]] = []
        for text, end in places:
            if text is own or end >= text.end:
                continue
            length = _agreeing(tail, text.slice(end - len(tail), end))
            if length > best:
                best, found = length, []
            if length == best:
                found.append(text.slice(end, end + depth))
        return best, found[::-1]  # the latest first: it wins among equals

    def _read(self, context: Context) -> _Text:
        text, tokens = self._live.get(context.id), context.tokens
        if text is not None and (text.end > len(tokens) or text.salt != context.salt):
            self.forget(context.id)
            text = None
        if text is None:
            start = self._shared(context)
            text = self._live[context.id] = _Text(context.salt, tokens, start)
            self._texts.append(text)
            if len(self._texts) > _SHARED:
                self._trim(self._texts[-_SHARED - 1])
        text.source = tokens
        self._learn(text, min(len(tokens), text.end + _AT_ONCE))
        return text

    def _shared(self, context: Context) -> int:
        """How many first tokens an earlier text of this salt has too."""
        best = 0
        for text in list(self._texts)[-_SHARED:]:
            if text.salt == context.salt and text.base == 0:
                low, high = 0, min(len(text.tokens), context.prompt_length)
                while low < high:
                    middle = (low + high + 1) // 2
                    if text.tokens[low:middle] == list(context.tokens[low:middle]):
                        low = middle
                    else:
                        high = middle - 1
                best = max(best, low)
        return best

    def _learn(self, text: _Text, end: int) -> None:
        """Index ``text`` up to ``end``; whatever exceeds the bound leaves, oldest first."""
        order = self._order
        text.tokens.extend(text.source[text.end : end])
        for at in range(text.end + 1, end + 1):
            if at >= order:
                index = self._index.setdefault(text.salt, {})
                index.setdefault(tuple(text.slice(at - order, at)), deque(maxlen=_RECENT)).append((text, at))
            text.end = at
            self._total += 1
            if self._total > self._size:
                self._evict()

    def _evict(self) -> None:
        """Forget the oldest remembered token, with the run that ends there."""
        while self._texts[0].start == self._texts[0].end:
            spent = self._texts.popleft()
            if spent.live:  # all of it has left already: what it has yet to say is new
                self._texts.append(spent)
        text = self._texts[0]
        text.start += 1
        self._total -= 1
        index = self._index.get(text.salt, {})
        key = tuple(text.slice(text.start - self._order, text.start))
        places = index.get(key, ())
        if places and (text, text.start) in places:
            places.remove((text, text.start))
            if not places:
                del index[key]
                if not index:
                    del self._index[text.salt]

    def _trim(self, text: _Text) -> None:
        """A text that has ended and that no new one will be compared with holds only what its matches need."""
        if not text.live and text not in list(self._texts)[-_SHARED:]:
            text.trim(self._longest)


def _agreeing(tail: list[int], before: list[int]) -> int:
    """How many last tokens the two have in common."""
    length = 0
    for a, b in zip(reversed(tail), reversed(before), strict=False):
        if a != b:
            break
        length += 1
    return length
