"""Growing a draft tree best first from a successor function, with the target's noise taken into account.

Knows probabilities and noise. Does not know where successors come from.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, ROOT, Draft

__all__ = ["grow", "sharpened"]

Successors = Callable[[Sequence[int]], Sequence[tuple[int, float]]]
"""From the last tokens of a path to likely next tokens with their probabilities, each in (0, 1]."""

_LEAST = 0.02
"""A node less likely than this, together with its ancestors, is not worth its bookkeeping."""


def sharpened(q: float, noise: float) -> float:
    """The chance that a token of probability ``q`` wins the coupled draw, given its own exponential noise E.

    It wins if E / q is below the minimum of all others', which is exponential with rate 1 - q; hence
    exp(-(E / q)(1 - q)). Averaged over E this is q again: the noise only tells when.
    """
    return math.exp(-noise * (1.0 - q) / q) if q > 0.0 else 0.0


def grow(context: Context, successors: Successors, order: int, *, budget: int, depth: int, source: str) -> Draft:
    """The ``budget`` likeliest nodes at most ``depth`` deep, by the product of their chances along the path.

    ``order``: how many last tokens ``successors`` looks at. Confidences are the plain probabilities; under the
    coupled rule at temperature > 0 the choice of nodes uses what the noise says of them.
    """
    tail = tuple(context.tokens[-order:])
    position = len(context.tokens) - context.prompt_length
    tokens: list[int] = []
    parents: list[int] = []
    confidence: list[float] = []
    # heap entries: (-value, tie, parent node, token, q, path up to and including the token, depth)
    heap: list[tuple[float, int, int, int, float, tuple[int, ...], int]] = []
    ties = 0

    def offer(parent: int, value: float, path: tuple[int, ...], level: int) -> None:
        nonlocal ties
        found = successors(path)
        noise = None
        if context.noise is not None and found:
            noise = context.noise(position + level - 1, [token for token, _ in found])
        for i, (token, q) in enumerate(found):
            chance = value * (q if noise is None else sharpened(q, float(noise[i])))
            if chance >= _LEAST:
                ties += 1
                heapq.heappush(heap, (-chance, ties, parent, token, q, (*path, token)[-order:], level))

    offer(ROOT, 1.0, tail, 1)
    while heap and len(tokens) < budget:
        value, _, parent, token, q, path, level = heapq.heappop(heap)
        node = len(tokens)
        tokens.append(token)
        parents.append(parent)
        confidence.append(q)
        if level < depth and len(tokens) < budget:
            offer(node, -value, path, level + 1)
    if not tokens:
        return EMPTY_DRAFT
    return Draft(tuple(tokens), tuple(parents), tuple(confidence), (source,) * len(tokens))
