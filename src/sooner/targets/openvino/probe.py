"""Measures a loaded target on this machine: the shared checks, negative controls, and what passes cost.

Knows how to score rows in ways that the target never uses. Does not know requests, drafters or text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from sooner import tree
from sooner.targets import probe
from sooner.targets.openvino.graph import block_count
from sooner.targets.openvino.layout import Pass
from sooner.targets.openvino.target import OpenVINOTarget
from sooner.targets.probe import Comparison, PassCost, Probe, RowVerdict
from sooner.tree import paths
from sooner.types import Draft

__all__ = ["check_rows", "pass_costs", "quick_check"]


def quick_check(target: OpenVINOTarget) -> bool:
    """Whether some rows are the same bits alone, in a long pass, in eights, and on a sibling; ten short passes."""
    quick = _Probe(target, min(40, target.context - 16), seed=1)
    same = all(c.differing == 0 for c in (quick.chunks(1, 4), quick.chunks(8, 3), quick.tree(1, 6)))
    target.pool.purge()
    return same


def check_rows(target: OpenVINOTarget, length: int = 600, seed: int = 0) -> RowVerdict:
    """Score ``length`` random tokens in one pass, then the same rows in other ways: some seconds for a small model."""
    probed = _Probe(target, min(length, target.context - 16, target.plan.pool_tokens // 8), seed)
    verdict = RowVerdict(probed.lawful(), (probed.lone_rows(8), probed.lone_tail(), probed.masks(12)))
    target.pool.purge()
    return verdict


def pass_costs(
    target: OpenVINOTarget,
    rows: Sequence[int] = (1, 2, 4, 8, 16),
    sequences: Sequence[int] = (1, 2, 4),
    contexts: Sequence[int] = (256,),
    repeats: int = 4,
) -> list[PassCost]:
    """Median times of passes at exact widths, interleaved; what changing one costs is ``target.width.change_ms``."""
    costs = probe.pass_costs(target, rows, sequences, contexts, repeats, before=target.width.forget)
    target.pool.purge()
    return costs


_NEAR = 128
"""Controls that prefill anew for every row stay below this position."""


class _Probe(Probe):
    """The shared probe, and the same rows in ways that break the target's law."""

    target: OpenVINOTarget

    def lone_rows(self, count: int) -> Comparison:
        """Unlawful: one row of one sequence beside four of another."""
        result = Comparison("1 row beside 4 rows")
        for place in self.places(count, 1, _NEAR):
            with self._prefilled(place) as table, self._prefilled(2) as other:
                flat = Pass()
                flat.rows.append(flat.feed(place, self.tokens[place : place + 1], table[: block_count(place + 1)]))
                flat.feed(0, self.tokens[:4], other[:1])
                result.add(self.target.runner.run(flat)[0], self.reference[place : place + 1])
        return result

    def lone_tail(self) -> Comparison:
        """Unlawful: a prefill of all tokens but one, then the last one alone."""
        result = Comparison(f"prefill of {self.length - 1} + 1")
        with self._prefilled(self.length - 1) as table:
            flat = Pass()
            flat.rows.append(flat.feed(self.length - 1, self.tokens[-1:], table[: block_count(self.length)]))
            result.add(self.target.runner.run(flat)[0], self.reference[-1:])
        return result

    def masks(self, count: int) -> Comparison:
        """Unlawful: the same trees in one sequence each, told apart by an attention mask."""
        result = Comparison("side branches of mask trees")
        depth = 6
        for place in self.places(count, depth, _NEAR):
            draft = self.forked(place, depth)
            with self._prefilled(place) as table:
                flat, mine = _masked(place, self.tokens[place], draft, table)
                flat.rows += mine
                result.add(self.target.runner.run(flat)[0], self.reference[place : place + len(mine)])
        return result

    @contextmanager
    def _prefilled(self, length: int) -> Iterator[list[int]]:
        """Blocks of our own that hold the first ``length`` tokens (at least 2), with room for a short draft."""
        table = [self.target.pool.take() for _ in range(block_count(length) + 1)]
        flat = Pass()
        flat.feed(0, self.tokens[:length], table[: block_count(length)])
        try:
            self.target.runner.run(flat)
            yield table
        finally:
            self.target.pool.drop(table)


def _masked(place: int, root: int, draft: Draft, table: Sequence[int]) -> tuple[Pass, list[int]]:
    """A tree as one sequence with a mask; also the rows of its last branch, root first."""
    flat = Pass()
    n = 1 + len(draft)
    flat.feed(place, (root, *draft.tokens), table[: block_count(place + n)])
    flat.positions[1:] = [place + level for level in tree.depths(draft)]
    mask = np.eye(n, dtype=np.bool_)
    mask[:, 0] = True
    mask[1:, 1:] = tree.ancestor_mask(draft)
    flat.bias = mask.astype(int).ravel().tolist()
    flat.bias_begins = [0, n * n]
    return flat, [0, *(node + 1 for node in paths(draft)[-1])]
