"""Lenient rejection: q is scaled down before it is compared with p. LOSSY, an explicit opt-in.

Knows p, q and coins. Does not know the coupled draw's noise, which must stay independent of the coins.
"""

from __future__ import annotations

from collections.abc import Callable

from sooner.errors import InvalidRequest
from sooner.protocols import Coins, Law
from sooner.types import ROOT, Draft, Probabilities, Verdict
from sooner.verify.rejection import try_sampled
from sooner.verify.residual import one_hot, residual

__all__ = ["LenienceVerifier"]


class LenienceVerifier:
    """Rejection with ``lenience * q`` for q (Leviathan et al. 2211.17192, appendix A.5).

    Not lossless, but bounded: no token comes out with more than p / lenience. Deterministic children count as drawn
    from one-hot rows, in order. ``lenience`` in (0, 1]; at 1, and at temperature 0, the output is the target's.
    """

    name = "lenience"
    lossless = False

    def __init__(self, *, lenience: float = 0.5) -> None:
        if not 0 < lenience <= 1:
            raise InvalidRequest(f"lenience must lie in (0, 1], not {lenience!r}", "lenience")
        self._lenience = lenience

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        """Walk down while a child is accepted; asks for the rows on that path only."""
        node = ROOT
        while True:
            p = law(node).p
            if node in draft.q:
                child, p = try_sampled(draft, node, p, coins, self._lenience)
            else:
                child, p = self._try_deterministic(draft, node, p, coins)
            if child is None:
                return Verdict(draft.path(node), coins.draw(p))
            node = child

    def _try_deterministic(
        self, draft: Draft, node: int, p: Probabilities, coins: Coins
    ) -> tuple[int | None, Probabilities]:
        for child in draft.children(node):
            token = draft.tokens[child]
            if coins.accept(float(p[token]), self._lenience):
                return child, p
            p = residual(p, self._lenience * one_hot(len(p), token))
        return None, p
