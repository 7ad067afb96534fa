"""How works become one flat pass: a draft tree as chains of consecutive slots, chains as the paged graph's inputs.

Knows positions, blocks and the two-row rule. Does not know models, caches or logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sooner.targets.openvino.graph import BLOCK_SIZE, block_count
from sooner.tree import paths
from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["Branch", "Pass", "branches"]


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens fed at consecutive positions from ``start``; the last ``len(nodes)`` before ``pad`` are draft nodes.

    ``pad`` rows at the end (0 or 1) are fed and never read.
    """

    start: int
    tokens: tuple[int, ...]
    nodes: tuple[int, ...]
    pad: int = 0

    @property
    def end(self) -> int:
        """The position after the last token fed."""
        return self.start + len(self.tokens)

    @property
    def root(self) -> int:
        """The row of the root within the branch."""
        return len(self.tokens) - self.pad - len(self.nodes) - 1

    @property
    def first_block(self) -> int:
        """The index of the first block written."""
        return self.start // BLOCK_SIZE

    @property
    def end_block(self) -> int:
        """The index after the last block written."""
        return block_count(self.end)


def branches(held: Sequence[int], tokens: tuple[int, ...], draft: Draft = EMPTY_DRAFT) -> list[Branch]:
    """Lay out ``tokens`` and ``draft`` after the ``held`` tokens of a session: the main chain, then its siblings.

    Every branch has at least two rows, because a row alone in its sequence takes other kernels than one in company:
    a single token is fed after a repetition of the token before it, which rewrites the same bits, or, where there is
    none, before a token whose row is discarded. A sibling starts at the root, or, if the root's block is entered in
    this very pass, at that block's first slot: earlier blocks are shared, later slots are its own.
    """
    past = len(held)
    main, *others = paths(draft)
    start, fed, pad = past, tokens + tuple([draft.tokens[node] for node in main]), 0
    if len(fed) == 1 and past:
        start, fed = past - 1, (held[-1], *fed)
    elif len(fed) == 1:
        fed, pad = (*fed, *fed), 1
    laid = [Branch(start, fed, main, pad)]
    if others:
        root = past + len(tokens) - 1
        start = max(past, root // BLOCK_SIZE * BLOCK_SIZE)
        stem = tokens[start - past :]
        laid += [Branch(start, stem + tuple([draft.tokens[node] for node in path]), path) for path in others]
    return laid


@dataclass(slots=True)
class Pass:
    """The flat inputs of one pass, grown branch by branch. ``rows`` are the indices of the rows to be scored."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    past_lens: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=lambda: [0])
    blocks: list[int] = field(default_factory=list)
    block_begins: list[int] = field(default_factory=lambda: [0])
    longest: int = 0
    rows: list[int] = field(default_factory=list)
    bias: list[int] = field(default_factory=list)
    bias_begins: list[int] = field(default_factory=lambda: [0])

    def feed(self, start: int, tokens: Sequence[int], table: Sequence[int]) -> int:
        """Add a sequence whose ``tokens`` follow ``start`` cached ones in ``table``; returns its first row's index."""
        first = len(self.tokens)
        end = start + len(tokens)
        self.tokens += tokens
        self.positions += range(start, end)
        self.past_lens.append(start)
        self.begins.append(first + len(tokens))
        self.blocks += table
        self.block_begins.append(len(self.blocks))
        self.bias_begins.append(len(self.bias))
        self.longest = max(self.longest, end)
        return first

    def widen(self, pad: int, scratch: int) -> None:
        """Feed ``pad`` more tokens after the last branch's, never read; slots its blocks lack are in ``scratch``.

        They repeat the last position: a model may have no position beyond its context.
        """
        end = self.positions[-1] + 1
        self.tokens += [0] * pad
        self.positions += [end - 1] * pad
        self.begins[-1] += pad
        if block_count(end + pad) > self.block_begins[-1] - self.block_begins[-2]:
            self.blocks.append(scratch)
            self.block_begins[-1] += 1
        self.longest = max(self.longest, end + pad)

    def score(self, laid: Sequence[Branch], firsts: Sequence[int], nodes: int) -> None:
        """Ask for the root's row and those of ``nodes`` draft nodes, laid out as ``laid`` from the rows ``firsts``."""
        rows = [-1] * (nodes + 1)
        for branch, first in zip(laid, firsts, strict=True):
            root = first + branch.root
            if rows[0] < 0:
                rows[0] = root
            for depth, node in enumerate(branch.nodes, 1):
                if rows[node + 1] < 0:
                    rows[node + 1] = root + depth
        self.rows += rows
