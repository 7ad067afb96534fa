"""A graph with sublayers left out as a draft model over the target's own cache: no second cache, no second prefill.

Knows whose blocks it reads and which slots it may write. Does not know the graph or what is drafted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import TargetError
from sooner.targets.openvino.graph import BLOCK_SIZE, block_count
from sooner.targets.openvino.layout import Pass
from sooner.targets.openvino.runner import Runner
from sooner.targets.openvino.session import Blocks, OpenVINOSession
from sooner.targets.openvino.skip import GATES
from sooner.types import ROOT, Rows, Work

__all__ = ["Borrowed", "Borrower", "borrower"]


class Borrowed:
    """A session over the blocks of a live session of the target that holds just the same tokens.

    It writes only behind those tokens: into the lender's last block where nobody else relies on that, else into a copy,
    and into blocks of its own. The lender's next pass writes the same slots anew, so that nothing written here is ever
    read by the target; and nothing here is filed, so that it is found by no prefix.
    """

    def __init__(self, blocks: Blocks, lent: set[int]) -> None:
        self._blocks = blocks
        self._lent = lent
        self._lender: int | None = None
        self._tokens: list[int] = []
        self._table: list[int] = []
        self._own: list[int] = []
        self.closed = False

    @property
    def tokens(self) -> Sequence[int]:
        """What the cache holds for this session, borrowed and own."""
        return self._tokens

    def settle(self, path: Sequence[int]) -> None:
        """Drop the draft nodes of the last pass; keeping some is not for a borrower."""
        if path:
            raise TargetError("a borrowed cache keeps no draft nodes: feed them as tokens")

    def sync(self, tokens: Sequence[int]) -> int:
        """Give back what was borrowed and borrow from a live session that holds exactly ``tokens``.

        Returns their number, or 0 if there is no such session, or only such as have lent already or have draft nodes
        pending.
        """
        self.give_back()
        wanted = list(tokens)
        for key, session in self._blocks.live.items():
            if key not in self._lent and _holds(session, wanted) and (table := session.lend()) is not None:
                self._lender = key
                self._lent.add(key)
                self._tokens, self._table = wanted, list(table)
                return len(wanted)
        return 0

    def give_back(self) -> None:
        """Hold nothing any more."""
        self._blocks.pool.drop(self._own)
        self._tokens, self._table, self._own = [], [], []
        if self._lender is not None:
            self._lent.discard(self._lender)
            self._lender = None

    def close(self) -> None:
        """`give_back` for good."""
        self.give_back()
        self.closed = True

    def needs(self, count: int) -> int:
        """The blocks that feeding ``count`` tokens takes from the pool."""
        return block_count(len(self._tokens) + count) - len(self._table) + self._copies()

    def place(self, count: int) -> list[int]:
        """Take blocks for ``count`` tokens more; the block table up to there."""
        pool, end = self._blocks.pool, block_count(len(self._tokens) + count)
        if self._copies():
            self._own.append(pool.take())
            self._blocks.copy(self._table[-1], self._own[-1])
            self._table[-1] = self._own[-1]
        while len(self._table) < end:
            self._own.append(pool.take())
            self._table.append(self._own[-1])
        return self._table[:end]

    def advance(self, tokens: Sequence[int]) -> None:
        """The pass over ``tokens`` succeeded."""
        self._tokens += tokens

    def _copies(self) -> bool:
        """Whether the last block must be copied before it is written: others read what lies behind our tokens in it."""
        if len(self._tokens) >= len(self._table) * BLOCK_SIZE:
            return False
        block, pool = self._table[-1], self._blocks.pool
        return block not in self._own and (pool.shared(block) or pool.filed(block))


class Borrower:
    """A `sooner.protocols.Target` whose sessions borrow from the target's live ones; ``runner`` runs the other graph.

    Rows come from single passes over any number of rows: a draft may be a bit off, so no two-row rule holds here. What
    is borrowed must be given back before the target's next pass (`release`). ``gates``: the array that switches the
    sublayers ``names`` of a graph with gates, None for any other graph. ``memory``: the bytes that the graph may take
    besides the target's.
    """

    row_invariant = False
    widths: tuple[int, ...] = ()

    def __init__(
        self,
        blocks: Blocks,
        runner: Runner,
        *,
        vocab_size: int,
        context: int,
        fingerprint: Mapping[str, str],
        memory: int = 0,
        names: Sequence[str] = (),
        gates: NDArray[np.float32] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.context = context
        self.fingerprint = fingerprint
        self.memory = memory
        self.names = tuple(names)
        self._blocks = blocks
        self._runner = runner
        self._gates = gates
        self._lent: set[int] = set()
        self._sessions: list[Borrowed] = []

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The tensors that its passes share with the target's: the caches of the attention that is left."""
        return {name: tensor for name, tensor in self._runner.kv.items() if name != GATES}

    def lends(self, tokens: Sequence[int]) -> bool:
        """Whether a live session of the target holds exactly ``tokens``."""
        wanted = list(tokens)
        return any(_holds(session, wanted) for session in self._blocks.live.values())

    def open(self, tokens: Sequence[int] = (), salt: str = "") -> Borrowed:
        """A session that borrows from one that holds exactly ``tokens``; it holds nothing if there is none.

        Nothing is found under a salt here: what is borrowed is what the target itself found for these tokens.
        """
        session = Borrowed(self._blocks, self._lent)
        self._sessions.append(session)
        if tokens:
            session.sync(tokens)
        return session

    def release(self) -> None:
        """Give back all that is borrowed; sessions borrow again with `Borrowed.sync`."""
        for session in self._sessions:
            session.give_back()
        self._sessions = [session for session in self._sessions if not session.closed]

    def fits(self, works: Sequence[Work]) -> bool:
        """Whether the pool has the blocks for a pass over ``works``."""
        return sum(self._session(w).needs(len(w.tokens) + len(w.draft)) for w in works) <= self._blocks.pool.available

    def score(self, works: Sequence[Work]) -> list[Rows]:
        """Feed each work's tokens and the chain below them; nodes are dropped. Raises `TargetError`."""
        if not self.fits(works):
            raise TargetError("the KV pool has no room for this draft: ask fits() first, or raise pool_tokens")
        flat = Pass()
        for work in works:
            if work.draft.parents != tuple(range(ROOT, len(work.draft) - 1)):
                raise TargetError("a borrowed cache scores chains only: give each branch a session of its own")
            session = self._session(work)
            fed = (*work.tokens, *work.draft.tokens)
            first = flat.feed(len(session.tokens), fed, session.place(len(fed)))
            if work.logits:
                flat.rows += range(first + len(work.tokens) - 1, first + len(fed))
        logits, _ = self._runner.run(flat)
        results, at = [], 0
        for work in works:
            self._session(work).advance(work.tokens)
            end = at + (1 + len(work.draft) if work.logits else 0)
            results.append(Rows(logits[at:end]))
            at = end
        return results

    def leave_out(self, names: Collection[str]) -> None:
        """Close the gates of ``names`` and open all others."""
        assert self._gates is not None, "this graph has no gates"
        self._gates[:] = [name not in names for name in self.names]

    def _session(self, work: Work) -> Borrowed:
        if not isinstance(work.session, Borrowed):
            raise TargetError("a work's session is not a borrower's: use the borrower's open()")
        return work.session


def _holds(session: OpenVINOSession, tokens: list[int]) -> bool:
    return len(session.tokens) == len(tokens) and session.tokens == tokens


def borrower(
    compiled: Any,
    kv: Mapping[str, Any],
    blocks: Blocks,
    *,
    vocab_size: int,
    context: int,
    fingerprint: Mapping[str, str],
    memory: int = 0,
    names: Sequence[str] = (),
) -> Borrower:
    """A borrower over the target's cache tensors ``kv`` and ``blocks``; ``names``: the sublayers of a graph with gates.

    Its first pass is run here, since that one also packs the weights.
    """
    import openvino as ov

    inputs = {port.any_name for port in compiled.inputs}
    tensors = {name: tensor for name, tensor in kv.items() if name in inputs}
    gates = None
    if names:
        tensors[GATES] = ov.Tensor(ov.Type.f32, ov.Shape([len(names)]))
        gates = tensors[GATES].data
        gates[:] = 1.0
    made = Borrower(
        blocks,
        Runner(compiled, tensors),
        vocab_size=vocab_size,
        context=context,
        fingerprint=fingerprint,
        memory=memory,
        names=names,
        gates=gates,
    )
    if blocks.pool.available:
        session = made.open()
        made.score([Work(session, (0,))])
        session.close()
    return made
