"""How works become a pass: flat tokens and positions, and for each text the chains its attention runs along.

Knows slots, positions and the row rule. Does not know tensors, models or logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sooner.tree import paths
from sooner.types import ROOT, Draft, Work

__all__ = ["Chain", "Pass", "RowRule", "Text"]


@dataclass(frozen=True, slots=True)
class RowRule:
    """Passes have at least ``least`` rows and a multiple of ``unit``: what the kernels need so that a row's bits do not
    depend on the number of rows beside it."""

    least: int = 1
    unit: int = 1

    def width(self, rows: int) -> int:
        """The rows of a pass that needs ``rows``."""
        return max(self.least, -(-rows // self.unit) * self.unit)

    def __str__(self) -> str:
        return f"at least {self.least}, in multiples of {self.unit}"


@dataclass(frozen=True, slots=True)
class Chain:
    """Tokens at consecutive positions. The entries of ``written`` (rows of the pass) go to positions from
    ``write_start`` on; then ``rows``, at positions from ``start`` on, attend to what lies up to their own."""

    rows: tuple[int, ...]
    start: int
    written: tuple[int, ...]
    write_start: int


@dataclass(frozen=True, slots=True)
class Text:
    """One work in a pass: its slot, its tokens' first row, and its chains, the main one last.

    ``node_rows[i]`` is the row of draft node i; ``root``: the row of the last known token; ``held``: tokens cached
    before; ``tree``: whether there is more than one chain.
    """

    slot: int
    held: int
    first: int
    root: int
    nodes: int
    chains: tuple[Chain, ...]

    @property
    def tree(self) -> bool:
        """Whether the draft branches."""
        return len(self.chains) > 1


@dataclass(slots=True)
class Pass:
    """Flat inputs of a pass, grown text by text. ``wanted``: the rows whose logits are read, in the works' order."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)

    def feed(self, work: Work, slot: int, held: int) -> Text:
        """Add ``work``, whose session holds ``held`` tokens in ``slot``."""
        first, k, draft = len(self.tokens), len(work.tokens), work.draft
        node = first + k
        self.tokens += work.tokens
        self.positions += range(held, held + k)
        chains = [*_side_chains(draft, node, held + k)]
        main = paths(draft)[0]
        rows = (*range(first, node), *(node + i for i in main))
        chains.append(Chain(rows, held, rows, held))
        if chains[:-1]:  # side chains attend to the tokens, so these are written first
            fed = tuple(range(first, node))
            chains[0] = Chain(chains[0].rows, chains[0].start, fed + chains[0].written, held)
        depth = [0] * len(draft)
        for i, parent in enumerate(draft.parents):
            depth[i] = 0 if parent == ROOT else depth[parent] + 1
        self.tokens += draft.tokens
        self.positions += [held + k + d for d in depth]
        text = Text(slot, held, first, node - 1, len(draft), tuple(chains))
        self.texts.append(text)
        if work.logits:
            self.wanted += range(node - 1, node + len(draft))
        return text

    def pad(self, rule: RowRule) -> None:
        """Fill up to the rule's width with rows that nobody reads; they repeat the last position."""
        missing = rule.width(len(self.tokens)) - len(self.tokens)
        self.tokens += [0] * missing
        self.positions += self.positions[-1:] * missing


def _side_chains(draft: Draft, first: int, start: int) -> list[Chain]:
    """The chains besides the main one; a node on several paths is a row of the first of them alone."""
    main, *others = paths(draft)
    owned = set(main)
    found = []
    for path in others:
        own = [node for node in path if node not in owned]
        owned.update(own)
        at = path.index(own[0])
        written = tuple(first + node for node in path)
        found.append(Chain(tuple(first + node for node in own), start + at, written, start))
    return found


def consecutive(rows: Sequence[int]) -> bool:
    """Whether ``rows`` count up by one (the same row again, as padding, does not)."""
    return rows[-1] - rows[0] == len(rows) - 1 and (len(rows) < 2 or rows[-1] != rows[-2])
