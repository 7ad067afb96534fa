"""What is broken on purpose: targets whose rows depend on the pass, and rules that are biased. An audit that does not
catch them proves nothing.

Knows one fault each. Does not know how it is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sooner.protocols import Coins, Law, Session, Target
from sooner.types import ROOT, Draft, Logits, Probabilities, Rows, Verdict, Work
from sooner.verify.rejection import RejectionVerifier
from sooner.verify.residual import residual

__all__ = ["FAULTS", "BrokenTarget", "PlainResidual", "UncappedRatio"]

Fault = Callable[[Work, Logits, int], Logits]


class BrokenTarget:
    """``target`` with a fault in its rows; all else is its own. ``fault`` gets a work, its rows and the tokens fed in
    the whole pass."""

    def __init__(self, target: Target, fault: Fault) -> None:
        self._target = target
        self._fault = fault

    @property
    def vocab_size(self) -> int:
        """See `protocols.Target`, as are all that follow."""
        return self._target.vocab_size

    @property
    def context(self) -> int:
        """The target's."""
        return self._target.context

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """The target's."""
        return self._target.fingerprint

    @property
    def row_invariant(self) -> bool:
        """What it claims, which is the point."""
        return self._target.row_invariant

    @property
    def widths(self) -> Sequence[int]:
        """The target's."""
        return self._target.widths

    def open(self, tokens: Sequence[int] = (), salt: str = "") -> Session:
        """The target's."""
        return self._target.open(tokens, salt)

    def fits(self, works: Sequence[Work]) -> bool:
        """The target's."""
        return self._target.fits(works)

    def score(self, works: Sequence[Work]) -> list[Rows]:
        """The target's rows with the fault in them."""
        fed = sum(len(work.tokens) + len(work.draft) for work in works)
        scored = zip(works, self._target.score(works), strict=True)
        return [Rows(self._fault(work, rows.logits, fed), rows.hidden) for work, rows in scored]


def _last_place(work: Work, logits: Logits, fed: int) -> Logits:
    """One unit in the last place, in passes with a draft."""
    return np.nextafter(logits, np.float32(np.inf)) if len(work.draft) else logits


def _row_counts(work: Work, logits: Logits, fed: int) -> Logits:
    """A small wave that depends on how many tokens the pass feeds, as kernels for other row counts round otherwise."""
    wave = np.sin(np.arange(logits.shape[-1]) * 0.7 + fed).astype(np.float32)
    return logits + np.float32(0.25) * wave if len(logits) else logits


def _swapped_rows(work: Work, logits: Logits, fed: int) -> Logits:
    """A draft's rows in the wrong places: each node has its parent's."""
    if not len(work.draft):
        return logits
    return np.stack([logits[0], *(logits[parent + 1] for parent in work.draft.parents)])


FAULTS: Mapping[str, Fault] = {"last-place": _last_place, "row-counts": _row_counts, "swapped-rows": _swapped_rows}
"""By name: a difference that no token shows, one of the size of rounding, and an outright mistake."""


class PlainResidual(RejectionVerifier):
    """After a rejection draws from p as if nothing had been drafted, instead of from what is left of p."""

    name = "plain residual"
    lossless = False

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        """As rejection, but for the residual."""
        node = ROOT
        while True:
            p = law(node).p
            if node not in draft.q:
                return Verdict(draft.path(node), coins.draw(p))
            q = draft.q[node]
            for child in draft.children(node):
                token = draft.tokens[child]
                if coins.accept(float(p[token]), float(q[token])):
                    node = child
                    break
            else:
                return Verdict(draft.path(node), coins.draw(p))


class UncappedRatio(RejectionVerifier):
    """Accepts the whole first branch by its uncapped joint ratio, as a published implementation does at its last
    token, or nothing."""

    name = "uncapped ratio"
    lossless = False

    def verify(self, draft: Draft, law: Callable[[int], Law], coins: Coins) -> Verdict:
        """All or nothing."""
        ratio, node = 1.0, ROOT
        rows: list[tuple[Probabilities, Probabilities]] = []
        while node in draft.q:
            rows.append((law(node).p, draft.q[node]))
            node = draft.children(node)[0]
            token = draft.tokens[node]
            ratio *= float(rows[-1][0][token] / rows[-1][1][token])
        if not rows or coins.accept(ratio):
            return Verdict(draft.path(node), coins.draw(law(node).p))
        return Verdict((), coins.draw(residual(*rows[0])))
