"""Suffix automaton drafting: the longest repeated suffix of the text, however long, and what followed it last time.

Knows one sequence's tokens. Does not know other sequences or any model.
"""

from __future__ import annotations

from collections.abc import Iterable

from sooner import tree
from sooner.draft.history import match_confidence, repeated
from sooner.draft.one_by_one import OneByOne
from sooner.draft.options import at_least, within
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["SuffixAutomaton", "SuffixDrafter"]

_MARKED = 16
"""Suffix links whose last occurrence is brought up to date per token: bounds the work on degenerate texts."""


class SuffixAutomaton:
    """All substrings of a growing token list (Blumer et al. 1985), each with where it last ended.

    After `extend`, ``length`` is the longest suffix of the text that also occurs earlier, and ``end`` (exclusive)
    where it did last. The suffix link of the whole text's state is that longest suffix, so no cursor is kept. An
    occurrence is noted along the suffix links of the new end, at most `_MARKED` of them; ``end`` is therefore the
    *latest* earlier occurrence unless the same suffix has at least that many nested repeated extensions there, and
    always a true one. Amortised O(1) per token, about 0.5 kB per token.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.length = 0
        self.end = 0
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._longest = [0]
        self._last_end = [0]
        self._whole = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Append ``tokens`` and find the longest repeated suffix of the result."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        nexts, links, longest, ends = self._next, self._link, self._longest, self._last_end
        self.tokens.append(token)
        end = len(self.tokens)
        state = len(nexts)
        nexts.append({})
        links.append(0)
        longest.append(end)
        ends.append(end)
        at = self._whole
        while at >= 0 and token not in nexts[at]:
            nexts[at][token] = state
            at = links[at]
        link = 0 if at < 0 else nexts[at][token]
        if at >= 0 and longest[link] != longest[at] + 1:
            link = self._split(at, token, link)
        links[state] = link
        self._whole = state
        self.length, self.end = longest[link], ends[link]
        for _ in range(_MARKED):
            if link == 0:
                break
            ends[link] = end
            link = links[link]

    def _split(self, at: int, token: int, state: int) -> int:
        """Give the shorter strings of ``state`` a state of their own, as they now also end here."""
        nexts, links = self._next, self._link
        clone = len(nexts)
        nexts.append(nexts[state].copy())
        self._longest.append(self._longest[at] + 1)
        self._last_end.append(self._last_end[state])
        links.append(links[state])
        links[state] = clone
        while at >= 0 and nexts[at].get(token) == state:
            nexts[at][token] = clone
            at = links[at]
        return clone

    def copy(self, count: int) -> list[int]:
        """``count`` tokens after the earlier occurrence; past the end it goes on in what it has copied."""
        return repeated(self.tokens[self.end : self.end + count], count)


class SuffixDrafter(OneByOne):
    """Copies what followed the longest repeated suffix of prompt and output (SAM decoding, 2411.10666).

    ``max``: most tokens drafted; ``min_match``: shortest match used; ``factor``: a match of m tokens drafts at most
    ``1 + factor * m`` (a pass has one row to spare, so even one token's match is worth a try). The index of the
    prompt is built at the first proposal, so after the first token (1 to 2 ms per 1,000 tokens, about a thousandth of
    their prefill).
    """

    name = "suffix"

    def __init__(self, *, max: int = 16, min_match: int = 1, factor: float = 1.0) -> None:
        self._max = at_least(1, max=max)
        self._min_match = at_least(1, min_match=min_match)
        self._factor = within(0.0, 1e6, factor=factor)
        self._automata: dict[int, SuffixAutomaton] = {}

    def forget(self, id: int) -> None:
        """Drop the sequence's automaton."""
        self._automata.pop(id, None)

    def _propose(self, context: Context) -> Draft:
        if min(self._max, context.budget) < 1:
            return EMPTY_DRAFT
        automaton = self._read(context)
        length = automaton.length
        if length < self._min_match:
            return EMPTY_DRAFT
        count = min(self._max, context.budget, 1 + int(self._factor * length))
        confidence = [match_confidence(length + i) for i in range(count)]
        return tree.chain(automaton.copy(count), confidence, self.name)

    def _read(self, context: Context) -> SuffixAutomaton:
        automaton, tokens = self._automata.get(context.id), context.tokens
        known = len(automaton.tokens) if automaton else 0
        if automaton is None or known > len(tokens) or (known and tokens[known - 1] != automaton.tokens[-1]):
            automaton, known = SuffixAutomaton(), 0
            self._automata[context.id] = automaton
        automaton.extend(tokens[known:])
        return automaton
