"""The coupled rule: the target draws its own token at every row, and the draft is kept as far as it foresaw them.

Knows the target's draw. Does not know q, coins or confidences; any draft is legal, and none can change the output.
"""

from __future__ import annotations

from collections.abc import Callable

from sooner.protocols import Coins, Law
from sooner.types import ROOT, Draft, Verdict

__all__ = ["CoupledVerifier"]


class CoupledVerifier:
    """Accept a child iff it carries the target's own draw; the last draw is always emitted. Lossless, any tree.

    The text equals plain decoding's under the same noise (Daliri, Musco, Suresh: arXiv 2408.07978); at temperature 0
    it is greedy verification. ``coins`` are never touched.
    """

    name = "coupled"
    lossless = True

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        """Walk down along the target's draws; asks for the rows on that path only."""
        node = ROOT
        while True:
            token = law(node).draw()
            child = draft.child(node, token)
            if child is None:
                return Verdict(draft.path(node), token)
            node = child
