"""Typical acceptance: keep drafted tokens that the target finds plausible. LOSSY, an explicit opt-in.

Knows p and coins. Does not know q: a deterministic and a sampled draft are treated alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sooner.errors import InvalidRequest
from sooner.protocols import Coins, Law
from sooner.types import ROOT, Draft, Probabilities, Verdict

__all__ = ["TypicalVerifier"]


class TypicalVerifier:
    """Accept token x iff ``p(x) > min(epsilon, delta * exp(-H(p)))``; the longest such path wins, ties the first.

    Not lossless: the output drifts towards the draft (Cai et al. 2401.10774, section 2.3.1, whose defaults these are).
    At temperature 0 p is one-hot and the rule equals greedy verification.
    """

    name = "typical"
    lossless = False

    def __init__(self, *, epsilon: float = 0.09, delta: float = 0.3) -> None:
        for option, value in (("epsilon", epsilon), ("delta", delta)):
            if not 0 < value < 1:
                raise InvalidRequest(f"{option} must lie between 0 and 1, not {value!r}", option)
        self._epsilon = epsilon
        self._delta = delta

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        """Walk to the deepest plausible node, draw the target's token there, walk on if a child carries it."""
        node = ROOT
        while True:
            node = self._deepest(draft, law, node)
            token = coins.draw(law(node).p)
            child = draft.child(node, token)
            if child is None:
                return Verdict(draft.path(node), token)
            node = child

    def _deepest(self, draft: Draft, law: Callable[[int], Law], start: int) -> int:
        depth = {start: 0}
        rows: dict[int, tuple[Probabilities, float]] = {}
        for node, parent in enumerate(draft.parents):
            if parent not in depth:
                continue
            if parent not in rows:
                p = law(parent).p
                rows[parent] = p, self._threshold(p)
            p, threshold = rows[parent]
            if p[draft.tokens[node]] > threshold:
                depth[node] = depth[parent] + 1
        return max(depth, key=lambda node: (depth[node], -node))

    def _threshold(self, p: Probabilities) -> float:
        mass = p[p > 0]
        entropy = -float((mass * np.log(mass)).sum())
        return min(self._epsilon, self._delta * math.exp(-entropy))
