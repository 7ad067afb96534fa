"""Block verification: decide on whole paths from the leaves up, which keeps more than going token by token.

Knows p, q and coins. Does not know the coupled draw's noise, which must stay independent of the coins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from sooner.protocols import Coins, Law
from sooner.types import ROOT, Draft, Probabilities, Verdict
from sooner.verify.residual import excess, without

__all__ = ["BlockVerifier"]


class BlockVerifier:
    """Traversal verification (2505.12398), on a chain block verification (Sun et al. 2403.10444). Lossless.

    Children are tried in order, each subtree from its leaves; a node that is reached is accepted with the probability
    that is left for it, and the token after it is drawn from what is left of its row. No gain over `rejection` where
    drafts are deterministic: such a parent ends the traversal, the target draws its own token from the full row, and
    if a child carries it, a new traversal begins there. Needs honest q rows.
    """

    name = "block"
    lossless = True

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        """Traverse, and walk on below deterministic children; asks only for rows that some path can still reach."""
        start = ROOT
        while True:
            node, weights = _traverse(draft, law, coins, start)
            token = coins.draw(weights)
            child = None if node in draft.q else draft.child(node, token)
            if child is None:
                return Verdict(draft.path(node), token)
            start = child


_NOTHING: Probabilities = np.zeros(0)


class _Frame:
    """A node on the traversal's stack: the chance ``reach`` that it is still accepted, and what is left of its row."""

    def __init__(self, draft: Draft, node: int, reach: float, law: Callable[[int], Law]) -> None:
        self.node = node
        self.reach = reach
        self._law = law
        self._left: Probabilities | None = None
        self._q = draft.q.get(node, _NOTHING)
        self._tokens = draft.tokens
        self._untried: Iterator[int] = iter(draft.children(node) if node in draft.q else ())
        self._tried: int | None = None

    @property
    def p(self) -> Probabilities:
        if self._left is None:
            self._left = self._law(self.node).p
        return self._left

    def next_child(self) -> int | None:
        child = next(self._untried, None)
        if child is not None:
            if self._tried is not None:
                self._q = without(self._q, self._tried)
            self._tried = self._tokens[child]
        return child

    def reach_of(self, child: int) -> float:
        token = self._tokens[child]
        q = float(self._q[token])
        return min(1.0, self.reach * float(self.p[token]) / q) if q > 0 else 0.0

    def reject(self) -> None:
        """The subtree of the child last tried is rejected: take out what it covered."""
        rest = excess(self.p, self._q, scale=self.reach)
        total = float(rest.sum())
        doubt = total + (1.0 - self.reach)
        self.reach = total / doubt if doubt > 0 else 1.0
        if total > 0:
            rest /= total
            self._left = rest


def _traverse(draft: Draft, law: Callable[[int], Law], coins: Coins, start: int) -> tuple[int, Probabilities]:
    """The node below which the walk from ``start`` ends, and the weights of the token drawn there."""
    stack = [_Frame(draft, start, 1.0, law)]
    while True:
        frame = stack[-1]
        child = frame.next_child()
        if child is not None:
            reach = frame.reach_of(child)
            if reach > 0:
                stack.append(_Frame(draft, child, reach, law))
            else:
                frame.reject()
        elif len(stack) == 1 or coins.accept(frame.reach):
            return frame.node, frame.p
        else:
            stack.pop()
            stack[-1].reject()
