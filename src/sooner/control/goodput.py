"""Drafts what raises expected tokens per second, no more: best-first over all running sequences on the cost curve.

Knows chances and costs. Does not know tokens, text or how anything is drafted.
(Goodput: Liu et al. 2406.14066; best-first trees: OPT-Tree 2406.17276, EAGLE-2 2406.16858.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sooner import tree
from sooner.control.cost import CostCurve
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Step

__all__ = ["GoodputController"]

_PATIENCE = 8
_RAREST = 16
_LEAST = 0.02

_STAY = 4.0
"""Steps over which a change of a pass's width must pay for itself."""


class GoodputController:
    """Chooses, for all sequences of a pass together, the draft nodes that raise expected tokens per millisecond.

    ``budget``: most candidates asked of the drafter per sequence. ``overhead_ms``: what a step costs besides its pass.
    A sequence whose drafts keep failing is asked for them ever more rarely, at least every `_RAREST` steps.
    """

    def __init__(self, curve: CostCurve, *, budget: int = 32, overhead_ms: float = 0.3) -> None:
        self.curve = curve
        self._budget = budget
        self._overhead_ms = overhead_ms
        self._misses: dict[int, int] = {}
        self._turn = 0
        self._width = 0.0

    def budgets(self, contexts: Sequence[Context]) -> list[int]:
        """Zero for sequences whose turn it is not, else the cap on candidates."""
        self._turn += 1
        return [self._budget if self._turn % self._pause(context.id) == 0 else 0 for context in contexts]

    def select(self, contexts: Sequence[Context], drafts: Sequence[Draft]) -> list[Draft]:
        """The best prefix of the best-first order; sampled drafts are kept as they are (dropping nodes is biased)."""
        offers: list[tuple[float, int, int]] = []
        for which, draft in enumerate(drafts):
            if draft.q:
                continue
            values: list[float] = []
            for node, parent in enumerate(draft.parents):
                value = draft.confidence[node] * (1.0 if parent == ROOT else values[parent])
                values.append(value)
                if value > _LEAST:
                    offers.append((-value, which, node))
        if not offers:
            return list(drafts) if any(draft.q for draft in drafts) else [EMPTY_DRAFT] * len(drafts)
        offers.sort()
        count = self._best_prefix(drafts, offers)
        chosen: list[list[int]] = [[] for _ in drafts]
        for _, which, node in offers[:count]:
            chosen[which].append(node)
        return [
            draft if draft.q or len(nodes) == len(draft) else tree.prune(draft, nodes) if nodes else EMPTY_DRAFT
            for draft, nodes in zip(drafts, chosen, strict=True)
        ]

    def observe(self, step: Step) -> None:
        """Count steps in a row in which a sequence's draft brought nothing."""
        if step.finish is not None:
            self._misses.pop(step.sequence, None)
        elif len(step.draft):
            self._misses[step.sequence] = 0 if step.accepted else self._misses.get(step.sequence, 0) + 1

    def _pause(self, id: int) -> int:
        return int(min(2 ** (self._misses.get(id, 0) // _PATIENCE), _RAREST))

    def _best_prefix(self, drafts: Sequence[Draft], offers: Sequence[tuple[float, int, int]]) -> int:
        """How many offers maximise expected tokens over time; rows as the curve's target would lay them out."""
        n = len(drafts)
        rows, branches, expected = np.empty(len(offers) + 1), np.zeros(len(offers) + 1), np.empty(len(offers) + 1)
        length = [1] * n  # rows of each sequence; a pass feeds at least two
        total, forks, tokens = 2.0 * n, 0.0, float(n)
        rows[0], expected[0] = total, tokens
        ends: list[set[int]] = [{ROOT} for _ in drafts]
        depths = [tree.depths(draft) for draft in drafts]
        for i, (value, which, node) in enumerate(offers, start=1):
            parent = drafts[which].parents[node]
            if parent in ends[which]:
                ends[which].discard(parent)
                added = 1.0
            else:
                added = 1.0 + self.curve.refeed * depths[which][node]
                forks += 1.0
            ends[which].add(node)
            total += added - (1.0 if length[which] == 1 else 0.0)
            length[which] += 1
            tokens -= value
            rows[i], branches[i], expected[i] = total, forks, tokens
        best = int((expected / self._cost(rows, n, branches)).argmax())
        self._width = rows[best] if rows[best] > self._width or self._narrower(rows[best], n) else self._width
        return best

    def _cost(self, rows: NDArray[np.float64], sequences: int, branches: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each choice: as wide as the last pass costs nothing extra; narrower may be padded to it."""
        ms = self.curve(rows, sequences, branches)
        if self.curve.change_ms > 0.0:
            changed = ms + self.curve.change_ms / _STAY
            stay = self.curve(np.full_like(rows, self._width), sequences, branches)
            ms = np.where(rows > self._width, changed, np.minimum(stay, changed))
        cost: NDArray[np.float64] = ms + self._overhead_ms
        return cost

    def _narrower(self, rows: float, sequences: int) -> bool:
        """Whether going down to ``rows`` is worth a change of width."""
        wide, narrow = self.curve(np.array([self._width, rows]), sequences, np.zeros(2))
        return bool(wide > narrow + self.curve.change_ms / _STAY)
