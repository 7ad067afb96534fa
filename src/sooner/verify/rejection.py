"""Rejection sampling: accept a drafted token with probability min(1, p/q), else draw from what is left of p.

Knows p, q and coins. Does not know the coupled draw's noise, which must stay independent of the coins.
"""

from __future__ import annotations

from collections.abc import Callable

from sooner.protocols import Coins, Law
from sooner.types import ROOT, Draft, Probabilities, Verdict
from sooner.verify.residual import residual, without

__all__ = ["RejectionVerifier", "try_sampled"]


class RejectionVerifier:
    """Token by token down the tree; the largest acceptance of a single sampled token. Lossless in distribution.

    Chains: Leviathan et al. (2211.17192), Chen et al. (2302.01318). Several sampled children: recursive rejection
    without replacement (Jeon et al. 2402.14160). Deterministic children: the target's own draw, kept if a child
    carries it. Needs honest q rows.
    """

    name = "rejection"
    lossless = True

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        """Walk down while a child is accepted; asks for the rows on that path only."""
        node = ROOT
        while True:
            p = law(node).p
            child, p = try_sampled(draft, node, p, coins) if node in draft.q else (None, p)
            if child is None:
                token = coins.draw(p)
                child = None if node in draft.q else draft.child(node, token)
                if child is None:
                    return Verdict(draft.path(node), token)
            node = child


def try_sampled(
    draft: Draft, node: int, p: Probabilities, coins: Coins, lenience: float = 1.0
) -> tuple[int | None, Probabilities]:
    """The accepted child of ``node`` if any, and p with what the rejected ones had covered taken out.

    ``lenience`` in (0, 1] scales q in the test and in the residual; below 1 it is lossy.
    """
    q = draft.q[node]
    rejected: int | None = None
    for child in draft.children(node):
        if rejected is not None:
            q = without(q, rejected)
        token = draft.tokens[child]
        if coins.accept(float(p[token]), lenience * float(q[token])):
            return child, p
        p = residual(p, q if lenience == 1.0 else lenience * q)
        rejected = token
    return None, p
