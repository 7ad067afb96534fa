"""Drafts what raises expected tokens per second, no more: best-first over all running sequences on the cost curve.

Knows chances and costs. Does not know tokens, text or how anything is drafted.
(Goodput: Liu et al. 2406.14066; best-first trees: OPT-Tree 2406.17276, EAGLE-2 2406.16858.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sooner import tree
from sooner.control.allowance import Allowance
from sooner.control.cost import CostCurve
from sooner.control.price import Price, Series
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Step

__all__ = ["GoodputController"]

_LEAST = 0.02
_PACE = 0.02
"""How fast the running estimate of tokens per millisecond follows."""


class GoodputController:
    """Chooses, for all sequences of a pass together, the draft nodes whose expected tokens are worth their time.

    Worth is measured at the pace reached so far: a choice that expects E tokens in t ms gains E - pace * t. A pass of
    another width than the last may cost more, so the width stays while that pays, and rows up to it are free; where
    the target has graphs ready for some widths, the pass takes one of those. ``budget``: most candidates asked of the
    drafter per sequence. ``overhead_ms``: what a step costs besides its pass. ``least_rows``: what each sequence feeds
    at least, as the target's passes are built. Drafting that does not pay is stopped by its `Allowance`, and tried
    again now and then; texts whose user said what is expected have one of their own.
    """

    def __init__(
        self, price: Price | CostCurve, *, budget: int = 24, overhead_ms: float = 0.5, least_rows: int = 2
    ) -> None:
        self.price = price if isinstance(price, Price) else Price(price)
        self._budget = budget
        self._least_rows = least_rows
        self._overhead_ms = overhead_ms
        self._allowances = {expected: Allowance() for expected in (False, True)}
        self._kinds: dict[int, bool] = {}
        self._sequences = 0
        self._context = 0.0
        self._asked: set[bool] = set()
        self._fresh = False
        self._expected: tuple[int, float, float] | None = None
        self._extra_ms = self._plain_ms = 0.0
        self._missed_ms = 0.0
        self._pace = 1.0 / (self.price.curve.ms[0] + overhead_ms)

    def budgets(self, contexts: Sequence[Context]) -> list[int]:
        """The cap on candidates; zero while drafting is not allowed to cost more."""
        self._sequences = len(contexts)
        self._context = sum(len(context.tokens) for context in contexts) / max(len(contexts), 1)
        self._kinds = {context.id: bool(context.expected) for context in contexts}
        self._asked = {kind for kind in self._kinds.values() if self._allowances[kind].open}
        self._fresh = True
        self._expected = None
        self._extra_ms = self._plain_ms = 0.0
        return [self._budget if self._kinds[context.id] in self._asked else 0 for context in contexts]

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
        self.price.refresh()
        if not offers:
            return self._whole(drafts)
        offers.sort()
        chosen: list[list[int]] = [[] for _ in drafts]
        for _, which, node in offers[: self._choose(*self._prefixes(drafts, offers))]:
            chosen[which].append(node)
        return [
            draft if draft.q or len(nodes) == len(draft) else tree.prune(draft, nodes) if nodes else EMPTY_DRAFT
            for draft, nodes in zip(drafts, chosen, strict=True)
        ]

    def observe(self, step: Step) -> None:
        """Keep the books of the pass: what it cost, what it brought, whether it took what was foreseen."""
        sequences = max(self._sequences, 1)
        if self._fresh:  # the first step of the pass
            self._fresh = False
            plain_ms = self._plain_ms or self._one(self._least_rows * sequences)
            for kind in set(self._kinds.values()):
                self._allowances[kind].passed(plain_ms)
            shares = len(self._asked)
            for kind in self._asked:
                self._allowances[kind].drafted(step.draft_ms / shares, self._extra_ms / shares)
            if self._expected is not None:
                fed, rows, ms = self._expected
                if step.pass_rows == fed:  # else somebody's prompt was read in the same pass
                    self.price.observe(rows, ms, step.score_ms)
        kind = self._kinds.get(step.sequence, False)
        if step.accepted and kind in self._asked:  # what a grammar forced while nobody was asked is nobody's merit
            self._allowances[kind].saved(step.accepted, sequences)

    def _whole(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Sampled drafts as they are, and nothing else."""
        kept = [draft if draft.q else EMPTY_DRAFT for draft in drafts]
        least = self._least_rows
        rows = least * max(self._sequences, len(drafts)) + sum(max(0, 1 + len(draft) - least) for draft in kept)
        self._plain_ms = self._one(least * max(self._sequences, 1))
        self._extra_ms = self._one(rows) - self._plain_ms
        return kept

    def _one(self, rows: int) -> float:
        return self.price.one(rows, max(self._sequences, 1), self._context)

    def _prefixes(
        self, drafts: Sequence[Draft], offers: Sequence[tuple[float, int, int]]
    ) -> tuple[Series, Series, Series]:
        """Rows, further branches and expected tokens of a pass that takes the first 0, 1, 2, ... offers."""
        size = len(offers) + 1
        rows, branches, expected = np.empty(size), np.zeros(size), np.empty(size)
        lengths = [1] * len(drafts)
        sequences = max(self._sequences, len(drafts))  # also those that were asked for no draft
        least = self._least_rows
        total, forks, tokens = float(least * sequences), 0.0, float(sequences)
        rows[0], expected[0] = total, tokens
        ends: list[set[int]] = [{ROOT} for _ in drafts]
        levels: list[dict[int, int]] = [{ROOT: 0} for _ in drafts]
        for i, (value, which, node) in enumerate(offers, start=1):
            parent = drafts[which].parents[node]
            level = levels[which][node] = levels[which][parent] + 1
            if parent in ends[which]:
                ends[which].discard(parent)
                total += 0.0 if lengths[which] < least else 1.0
            else:
                total += 1.0 + self.price.curve.refeed * level
                forks += 1.0
            ends[which].add(node)
            lengths[which] += 1
            tokens -= value
            rows[i], branches[i], expected[i] = total, forks, tokens
        return rows, branches, expected

    def _choose(self, rows: Series, branches: Series, expected: Series) -> int:
        """How many offers to take. Where no width is ready, leaving one is a purchase: see `_stay`."""
        sequences = max(self._sequences, 1)
        padded, ready = self.price.pad(rows)
        ms = self.price.steady(padded, sequences, branches, self._context)
        self._plain_ms = float(ms[0])
        change_ms = self.price.curve.change_ms
        if self.price.ready:
            ms = ms + np.where(ready | (padded == self.price.width), 0.0, change_ms)
        best = int((expected - self._pace * ms).argmax())
        if not ready[best] and padded[best] != self.price.width:
            if change_ms > 0.0 and not self.price.ready and (stay := self._stay(best, ms, rows, branches, expected)):
                return self._take(*stay, expected)
            self.price.width = float(padded[best])
            self._missed_ms = 0.0
        return self._take(best, float(padded[best]), float(ms[best]), expected)

    def _stay(
        self, best: int, ms: Series, rows: Series, branches: Series, expected: Series
    ) -> tuple[int, float, float] | None:
        """The best choice within the last width with its rows and price, until staying has cost a change of width."""
        width = self.price.width
        inside = np.flatnonzero(rows <= width)
        if not len(inside):
            return None
        stay = int(inside[expected[inside].argmax()])
        there = np.array([width]), max(self._sequences, 1), branches[stay : stay + 1], self._context
        stay_ms = float(self.price.steady(*there)[0])
        gains = expected[best] - self._pace * ms[best], expected[stay] - self._pace * stay_ms
        lost = float(gains[0] - gains[1]) / self._pace
        self._missed_ms = max(0.0, self._missed_ms + lost) if lost > 0.0 else 0.5 * self._missed_ms
        return (stay, width, stay_ms) if self._missed_ms <= self.price.curve.change_ms else None

    def _take(self, choice: int, rows: float, ms: float, expected: Series) -> int:
        self._expected = choice + max(self._sequences, 1), rows, ms
        self._extra_ms = max(0.0, ms - self._plain_ms)
        self._pace += _PACE * (float(expected[choice]) / (ms + self._overhead_ms) - self._pace)
        return choice
