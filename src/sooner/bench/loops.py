"""Where a text falls into a self-repetition loop: small models do, and copying a loop flatters every drafter.

Knows tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["in_loop", "loop_start"]

_LONGEST = 96
_REPEATS = 3
_SHORTEST_RUN = 24


def in_loop(tokens: Sequence[int]) -> bool:
    """Whether the text ends in a loop: its last tokens repeat with some period, three times, 24 tokens at least."""
    return _run(tokens) is not None


def loop_start(tokens: Sequence[int]) -> int:
    """The position at which the first repetition of a final loop begins; ``len(tokens)`` if the text ends in none.

    The first period is ordinary text; what follows it says nothing new.
    """
    found = _run(tokens)
    return len(tokens) if found is None else found


def _run(tokens: Sequence[int]) -> int | None:
    n = len(tokens)
    best: int | None = None
    for period in range(1, min(_LONGEST, n // _REPEATS) + 1):
        start = n
        while start > period and tokens[start - 1] == tokens[start - 1 - period]:
            start -= 1
        # tokens[start - period:] has this period; the first repetition begins at start
        length = n - (start - period)
        if length >= max(_REPEATS * period, _SHORTEST_RUN) and (best is None or start < best):
            best = start
    return best
