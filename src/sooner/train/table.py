"""Counting a target's own text into a successor table.

Knows token sequences. Does not know how they were made or how the table drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.draft.table import ORDERS, SuccessorTable, context_key

__all__ = ["build_table"]

_DISCOUNT = 0.5
"""Taken off every count: what was seen once in one context is seen again about half as often as it claims."""


def build_table(
    texts: Iterable[tuple[Sequence[int], Sequence[int]]],
    *,
    model: str,
    recipe: str = "",
    width: int = 3,
    min_count: int = 2,
    min_chance: float = 0.05,
    entries: int = 150_000,
) -> SuccessorTable:
    """Count (prompt, answer) pairs; only answers are counted, the prompt's last tokens are their first contexts.

    Per order at most ``entries`` contexts are kept, those that would save the most: seen at least ``min_count``
    times (order 1: once), the best successor's share times the count highest.
    """
    counts: dict[int, dict[tuple[int, ...], Counter[int]]] = {order: {} for order in ORDERS}
    for prompt, answer in texts:
        tokens = (*prompt[-ORDERS[0] :], *answer)
        first = len(tokens) - len(answer)
        for at in range(first, len(tokens)):
            for order in ORDERS:
                if at >= order:
                    counts[order].setdefault(tuple(tokens[at - order : at]), Counter())[tokens[at]] += 1
    kept = {order: _kept(counts[order], width, 1 if order == 1 else min_count, min_chance, entries) for order in ORDERS}
    return SuccessorTable(
        {order: np.array(list(rows), dtype=np.uint32) for order, rows in kept.items()},
        {order: _array([r[0] for r in rows.values()], width, np.uint32) for order, rows in kept.items()},
        {order: _array([r[1] for r in rows.values()], width, np.uint8) for order, rows in kept.items()},
        model,
        recipe,
    )


Row = tuple[list[int], list[int]]


def _kept(
    counts: dict[tuple[int, ...], Counter[int]], width: int, min_count: int, min_chance: float, entries: int
) -> dict[int, Row]:
    scored: list[tuple[float, int, Row]] = []
    for context, successors in counts.items():
        total = successors.total()
        if total < min_count:
            continue
        best = [(token, (count - _DISCOUNT) / total) for token, count in successors.most_common(width)]
        best = [(token, chance) for token, chance in best if chance >= min_chance]
        if best:
            row = [token for token, _ in best], [max(1, round(chance * 255)) for _, chance in best]
            scored.append((best[0][1] * total, context_key(context), row))
    scored.sort(key=lambda entry: (-entry[0], entry[1]))
    rows: dict[int, Row] = {}
    for _, key, row in scored[:entries]:
        rows.setdefault(key, row)
    return dict(sorted(rows.items()))


def _array(rows: list[list[int]], width: int, dtype: type[Any]) -> NDArray[Any]:
    out = np.zeros((len(rows), width), dtype=dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
