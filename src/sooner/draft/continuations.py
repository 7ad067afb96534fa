"""A draft tree from the ways a matched text went on elsewhere: counted, and grown best first.

Knows continuations as token lists. Does not know where they were found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sooner.draft.growth import grow
from sooner.draft.history import match_confidence
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["grow_continuations"]

_UNSEEN = 0.5
"""Added to the number of occurrences: what followed the only one is not certain to follow again."""

_WIDTH = 4
"""Most children of a node."""


def grow_continuations(
    context: Context, found: Sequence[Sequence[int]], length: int, *, budget: int, depth: int, source: str
) -> Draft:
    """The likeliest ``budget`` nodes of the tree of all ``found`` continuations (REST, 2311.08252).

    A node's chance is its share of the continuations that reach its parent, times what a match of ``length`` tokens
    (and those drafted since) is worth.
    """
    if not found:
        return EMPTY_DRAFT

    def successors(path: Sequence[int]) -> list[tuple[int, float]]:
        drafted = list(path[1:])
        level = len(drafted)
        counts = Counter(run[level] for run in found if len(run) > level and run[:level] == drafted)
        worth = match_confidence(length + level) / (counts.total() + _UNSEEN)
        return [(token, count * worth) for token, count in counts.most_common(_WIDTH)]

    # Below the last token alone, so that a path is that token and the drafted ones.
    below = replace(context, tokens=context.tokens[-1:], prompt_length=context.prompt_length - len(context.tokens) + 1)
    return grow(below, successors, depth + 1, budget=budget, depth=depth, source=source)
