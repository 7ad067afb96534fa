"""The OpenVINO CPU target: many sequences in one pass, each row the same bits however it was scored.

Knows how works become a pass and its rows become results. Does not know sampling, drafting or text.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import DraftError, TargetError
from sooner.targets.openvino.borrow import Borrower, borrower
from sooner.targets.openvino.kv import KVCache
from sooner.targets.openvino.lanes import Lanes
from sooner.targets.openvino.layout import Pass
from sooner.targets.openvino.memory import MemoryPlan, graph_bytes
from sooner.targets.openvino.pool import BlockPool
from sooner.targets.openvino.runner import Runner
from sooner.targets.openvino.session import Blocks, OpenVINOSession
from sooner.targets.openvino.skip import add_gates, leave_out, weight_bytes
from sooner.targets.openvino.width import Width
from sooner.targets.works import check_works
from sooner.types import Logits, Rows, Work

__all__ = ["Edit", "OpenVINOTarget"]

Edit = Callable[[Any], Sequence[str] | None]
"""Changes a paged graph before it is compiled; returns the sublayers it has put behind gates, if any."""

_DYNAMIC = 0.1
"""Of a pass's time, what a graph of any width costs more than a lane even when no width changes."""

log = logging.getLogger("sooner")


class OpenVINOTarget:
    """A `sooner.protocols.Target` over a paged graph; `sooner.targets.openvino.load` makes one.

    The law of every pass: each sequence in it has at least two rows, branches are sibling chains on consecutive
    slots, and the KV cache has no 8-bit type. Under it a row's bits depend on its tokens alone, where the processor's
    kernels play along: ``row_invariant`` says whether a check on this machine and model found it so.
    """

    def __init__(
        self,
        runner: Runner,
        kv: KVCache,
        plan: MemoryPlan,
        lanes: Lanes,
        *,
        vocab_size: int,
        fingerprint: Mapping[str, str],
    ) -> None:
        self.plan = plan
        self.pool = BlockPool(plan.blocks, plan.kept_blocks)
        self.runner = runner
        self.kv = kv
        self.width = Width()
        self.lanes = lanes
        self.edited: Callable[[Edit], tuple[Any, Sequence[str]]] | None = None
        """Compiles the graph once more after an edit; set by `load`."""
        self.heads: Callable[[str, bool], Any] | None = None
        """Opens trained heads that read the rows this target shows; set by `sooner.load`."""
        self._proven: set[int] = set()
        self._blocks = Blocks(self.pool, kv.copy)
        self._vocab_size = vocab_size
        self._fingerprint = MappingProxyType(dict(fingerprint))
        self.row_invariant = False

    @property
    def vocab_size(self) -> int:
        """V, the length of a logits row."""
        return self._vocab_size

    @property
    def context(self) -> int:
        """The most tokens one session can hold: the model's, or what the KV pool has room for."""
        return self.plan.context

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """Model hash, engine version, processor and its features, precisions."""
        return self._fingerprint

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the lanes compiled so far."""
        return self.lanes.ready

    def open(self, tokens: Sequence[int] = (), salt: str = "") -> OpenVINOSession:
        """A session that holds the longest prefix of ``tokens`` found in the cache or a live session under ``salt``."""
        return OpenVINOSession(self._blocks, tokens, salt)

    def skipping(self, names: Collection[str]) -> Borrower:
        """A draft model over this target's cache: its graph without the sublayers ``names``, such as 3a and 3m.

        Raises `DraftError` for a set that does not fit the model, `UnsupportedModel` for a model without sublayers.
        """
        return self._borrower(lambda graph: leave_out(graph, names))

    def gated(self) -> Borrower:
        """A draft model over this target's cache whose sublayers are switched by `Borrower.leave_out`."""
        return self._borrower(add_gates)

    def _borrower(self, edit: Edit) -> Borrower:
        if self.edited is None:
            raise DraftError("this target has no graph to leave layers out of: load a model from its files")
        weights = 0

        def weighed(graph: Any) -> Sequence[str] | None:
            nonlocal weights
            names = edit(graph)
            weights = weight_bytes(graph)
            return names

        compiled, names = self.edited(weighed)
        return borrower(
            compiled,
            self.kv.tensors,
            self._blocks,
            vocab_size=self.vocab_size,
            context=self.context,
            fingerprint=self.fingerprint,
            memory=graph_bytes(weights),
            names=names,
        )

    def fits(self, works: Sequence[Work]) -> bool:
        """Whether the pool has the blocks for one pass over ``works``, after eviction."""
        return sum(self._session(work).needs(work) for work in works) <= self.pool.available

    def score(self, works: Sequence[Work]) -> list[Rows]:
        """Score all works in one pass. Raises `TargetError`; the sessions then hold what they held before."""
        sessions = [self._session(work) for work in works]
        self._check(works, sessions)
        if not works:
            return []
        for session in sessions:
            session.drop_pending()  # all of them, before the first takes a block: `fits` counts on it
        flat = Pass()
        for work, session in zip(works, sessions, strict=True):
            laid = session.place(work)
            firsts = [flat.feed(branch.start, branch.tokens, table) for branch, table in laid]
            if work.logits:
                flat.score([branch for branch, _ in laid], firsts, len(work.draft))
        try:
            logits, hidden = self._run(flat)
        except TargetError:
            for session in sessions:
                session.drop_pending()
            raise
        results = []
        first = 0
        for work, session in zip(works, sessions, strict=True):
            session.advance(work.tokens)
            end = first + (1 + len(work.draft) if work.logits else 0)
            results.append(Rows(logits[first:end], None if hidden is None else hidden[first:end]))
            first = end
        return results

    def _run(self, flat: Pass) -> tuple[Logits, NDArray[np.float32] | None]:
        tokens = len(flat.tokens)
        if lane := self.lanes.find(tokens):
            width, runner = lane
            if pad := width - tokens:
                flat.widen(pad, self.plan.blocks)
            return runner.run(flat) if width in self._proven else self._prove(flat, width, runner)
        changed = self.width.last
        if pad := self.width.fit(tokens) - tokens:
            flat.widen(pad, self.plan.blocks)
        begin = time.perf_counter()
        rows = self.runner.run(flat)
        spent = (time.perf_counter() - begin) * 1e3
        self.lanes.owe(tokens, _DYNAMIC * spent + (self.width.change_ms if changed != self.width.last else 0.0))
        return rows

    def _prove(self, flat: Pass, width: int, runner: Runner) -> tuple[Logits, NDArray[np.float32] | None]:
        """A lane's first pass runs on both graphs: one whose rows are not the same bits is not used."""
        mine = runner.run(flat)[0].copy()
        logits, hidden = self.runner.run(flat)
        self.width.forget()
        if np.array_equal(mine.view(np.uint32), logits.view(np.uint32)):
            self._proven.add(width)
        else:
            log.warning("the lane of width %s computes other bits than the graph it copies: it is not used", width)
            self.lanes.drop(width)
        return logits, hidden

    def _session(self, work: Work) -> OpenVINOSession:
        session = work.session
        if not isinstance(session, OpenVINOSession) or not session.belongs_to(self._blocks):
            raise TargetError("a work's session was not opened on this target: use target.open()")
        return session

    def _check(self, works: Sequence[Work], sessions: Sequence[OpenVINOSession]) -> None:
        check_works(works, sessions, self.context)
        if not self.fits(works):
            raise TargetError("the KV pool has no room for this pass: ask fits() first, or raise pool_tokens")
