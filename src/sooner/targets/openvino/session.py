"""One sequence's place in the cache: its tokens, its block table, and the branches of its last pass.

Knows blocks and tokens. Does not know the model, the pass, or what a block contains (`Blocks.copy` moves contents).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sooner.errors import TargetError
from sooner.targets.openvino.graph import BLOCK_SIZE, block_count
from sooner.targets.openvino.layout import Branch, branches
from sooner.targets.openvino.pool import BlockPool, Parent
from sooner.types import EMPTY_DRAFT, Work

__all__ = ["Blocks", "OpenVINOSession"]


@dataclass(slots=True)
class Blocks:
    """What the sessions of one target share: the pool, the copy of one block's contents, and who is alive."""

    pool: BlockPool
    copy: Callable[[int, int], None]
    live: dict[int, OpenVINOSession] = field(default_factory=dict)


class OpenVINOSession:
    """Holds ``tokens`` in ``table``'s blocks. Between a pass and `settle`, also the branches of the pass's draft.

    A pass writes only slots from the end of ``tokens`` on (and, re-feeding, the last one with the same bits), and
    only in blocks that no other session and no prefix relies on. So ``tokens`` always describes the settled entries.
    """

    def __init__(self, blocks: Blocks, tokens: Sequence[int] = (), salt: str = "") -> None:
        self._blocks = blocks
        self._pool = blocks.pool
        self._salt = salt
        self._tokens: list[int] = []
        self._table: list[int] = []
        self._serials: list[int] = []
        self._draft = EMPTY_DRAFT
        self._pending: list[tuple[tuple[int, ...], int, list[int]]] = []
        self._closed = False
        self._attach(list(tokens))
        blocks.live[id(self)] = self

    @property
    def tokens(self) -> Sequence[int]:
        """The settled tokens; read-only, it grows and shrinks in place."""
        return self._tokens

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def belongs_to(self, blocks: Blocks) -> bool:
        """Whether the session was opened over ``blocks``."""
        return self._blocks is blocks

    def lend(self) -> Sequence[int] | None:
        """The blocks of ``tokens``, for one who writes behind these and is gone before the next pass; None while draft
        nodes are pending, since those lie there."""
        return None if self._pending else self._table

    def settle(self, path: Sequence[int]) -> None:
        """Keep the draft nodes ``path`` of the last pass; a sibling's blocks take the place of the main chain's.

        Raises `TargetError` if ``path`` is no path of that draft.
        """
        path = tuple(path)
        chosen = next((i for i, (nodes, _, _) in enumerate(self._pending) if nodes[: len(path)] == path), None)
        if chosen is None and path:
            raise TargetError(f"{path} is no path of the draft scored last: settle once, after the pass")
        if chosen:
            _, first, own = self._pending[chosen]
            self._pool.drop(self._table[first:])
            self._table[first:] = own
            del self._pending[chosen]
        self._tokens += [self._draft.tokens[node] for node in path]
        self.drop_pending()
        self._file()

    def sync(self, tokens: Sequence[int]) -> int:
        """Keep the common prefix with ``tokens``, cut the rest; returns its length."""
        self.drop_pending()
        n = _common(self._tokens, tokens)
        del self._tokens[n:]
        del self._serials[n // BLOCK_SIZE :]
        self._trim()
        return n

    def close(self) -> None:
        """Drop every block. Full ones stay findable until they are evicted."""
        if not self._closed:
            self.sync(())
            del self._blocks.live[id(self)]
            self._closed = True

    def needs(self, work: Work) -> int:
        """The blocks that a pass over ``work`` takes from the pool, less those it gives back first."""
        laid = branches(self._tokens, work.tokens, work.draft)
        settled = self._settled_blocks()
        wanted = laid[0].end_block - settled + self._rewrites(laid[0], settled)
        wanted += sum(branch.end_block - branch.first_block for branch in laid[1:])
        return wanted - (len(self._table) - settled) - sum(len(own) for _, _, own in self._pending[1:])

    def place(self, work: Work) -> list[tuple[Branch, list[int]]]:
        """Take blocks for a pass over ``work``: each branch with its block table. `needs` says how many that takes.

        Nothing may be pending: `drop_pending` comes first.
        """
        laid = branches(self._tokens, work.tokens, work.draft)
        main = laid[0]
        if self._rewrites(main, len(self._table)):
            relied_on = self._table[main.first_block]
            self._table[main.first_block] = self._copied(main.first_block)
            self._pool.drop((relied_on,))
        self._draft = work.draft
        for branch in laid[1:]:
            first = branch.first_block
            own = [self._copied(first)] if branch.start % BLOCK_SIZE else []
            own += [self._pool.take() for _ in range(branch.end_block - first - len(own))]
            self._pending.append((branch.nodes, first, own))
        self._table += [self._pool.take() for _ in range(main.end_block - len(self._table))]
        self._pending.insert(0, (main.nodes, main.first_block, []))
        return [
            (branch, self._table[:first] + own if own else self._table)
            for branch, (_, first, own) in zip(laid, self._pending, strict=True)
        ]

    def advance(self, tokens: Sequence[int]) -> None:
        """The pass over ``tokens`` succeeded: they are settled, the draft is pending."""
        self._tokens += tokens
        self._file()

    def drop_pending(self) -> None:
        """Drop the last pass's draft nodes and every block beyond the settled tokens."""
        for _, _, own in self._pending:
            self._pool.drop(own)
        self._pending.clear()
        self._draft = EMPTY_DRAFT
        self._trim()

    def _attach(self, tokens: list[int]) -> None:
        parent: Parent = self._salt
        for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
            found = self._pool.find(parent, tuple(tokens[end - BLOCK_SIZE : end]))
            if found is None:
                break
            block, serial = found
            self._pool.hold(block)
            self._table.append(block)
            self._serials.append(serial)
            parent = serial
        n = len(self._table) * BLOCK_SIZE
        block, more = self._longest_partial(tokens, n)
        if more and self._pool.available:
            own = self._pool.take()
            self._blocks.copy(block, own)
            self._table.append(own)
            n += more
        self._tokens = tokens[:n]

    def _longest_partial(self, tokens: list[int], n: int) -> tuple[int, int]:
        """The block of a live session that holds the most of ``tokens`` from ``n`` on, and how many."""
        wanted = tokens[n : n + BLOCK_SIZE]
        best, block = 0, -1
        for other in self._blocks.live.values():
            held = other._tokens
            if other._salt != self._salt or held[:n] != tokens[:n]:
                continue
            same = _common(held[n : n + BLOCK_SIZE], wanted)
            if same > best:
                best, block = same, other._table[n // BLOCK_SIZE]
        return block, best

    def _rewrites(self, main: Branch, blocks: int) -> bool:
        """Whether the pass must first copy the block it starts in, because others rely on its contents."""
        first = main.first_block
        if first >= blocks:
            return False
        block = self._table[first]
        partial = len(self._tokens) < (first + 1) * BLOCK_SIZE
        return self._pool.shared(block) or (partial and self._pool.filed(block))

    def _copied(self, index: int) -> int:
        """A block of our own with the contents of the table's ``index``-th, which the caller puts in its place."""
        source, own = self._table[index], self._pool.take()
        self._blocks.copy(source, own)
        return own

    def _settled_blocks(self) -> int:
        return block_count(len(self._tokens))

    def _trim(self) -> None:
        settled = self._settled_blocks()
        if len(self._table) > settled:
            self._pool.drop(self._table[settled:])
            del self._table[settled:]

    def _file(self) -> None:
        """Make the blocks that are full now findable."""
        for index in range(len(self._serials), len(self._tokens) // BLOCK_SIZE):
            parent: Parent = self._serials[-1] if index else self._salt
            content = tuple(self._tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE])
            self._table[index], serial = self._pool.file(self._table[index], parent, content)
            self._serials.append(serial)


def _common(ours: list[int], theirs: Sequence[int]) -> int:
    """The length of the common prefix. The usual case, that one goes on from the other, is a single comparison."""
    n = min(len(ours), len(theirs))
    if ours[:n] == list(theirs[:n]):
        return n
    return next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
