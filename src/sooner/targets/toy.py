"""An exact Markov model as a target: the same laws as a real one, without weights.

Knows its transition rows and a counted cache. A row depends on the last ``order`` tokens only, so every law can be
checked by enumeration; with ``row_dependent`` it breaks row invariance on purpose (the negative control).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sooner import tree
from sooner.errors import TargetError
from sooner.types import Draft, Logits, Rows, Work

__all__ = ["ToySession", "ToyTarget"]


class ToyTarget:
    """Scores tokens by a fixed random table of logits, or by the rows of ``table`` where it has the context.

    ``vocab_size``: V. ``order``: how many last tokens a row depends on. ``sharpness``: standard deviation of the
    logits. ``table``: context tuple (at most ``order`` tokens, longest match first) -> row ``[V]``.
    ``pool_tokens``: cache slots for all sessions together (at least ``context``).
    """

    def __init__(
        self,
        vocab_size: int = 32,
        *,
        order: int = 2,
        seed: int = 0,
        sharpness: float = 2.0,
        context: int = 512,
        pool_tokens: int | None = None,
        table: Mapping[tuple[int, ...], Sequence[float]] | None = None,
        row_dependent: bool = False,
    ) -> None:
        self._vocab_size = vocab_size
        self._order = order
        self._seed = seed
        self._sharpness = sharpness
        self._context = context
        self._pool_tokens = max(context, pool_tokens or 64 * context)
        self._table = {key: np.asarray(row, dtype=np.float32) for key, row in (table or {}).items()}
        self._row_dependent = row_dependent
        self._rows: dict[tuple[int, ...], Logits] = {}
        self.sessions: list[ToySession] = []

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._vocab_size

    @property
    def context(self) -> int:
        """The most tokens of one session."""
        return self._context

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """What the rows depend on."""
        return {"model": f"toy-{self._vocab_size}-{self._order}-{self._seed}-{self._sharpness}"}

    @property
    def widths(self) -> tuple[int, ...]:
        """None: rows are computed one by one."""
        return ()

    @property
    def row_invariant(self) -> bool:
        """True unless built as the negative control."""
        return not self._row_dependent

    @property
    def used_tokens(self) -> int:
        """Cache slots in use by open sessions."""
        return sum(len(session.tokens) for session in self.sessions)

    def open(self, tokens: Sequence[int] = (), salt: str = "") -> ToySession:
        """A session holding the longest prefix that an open session of the same salt also holds."""
        prefix = max((_common(s.tokens, tokens) for s in self.sessions if s.salt == salt), default=0)
        session = ToySession(self, list(tokens[:prefix]), salt)
        self.sessions.append(session)
        return session

    def fits(self, works: Sequence[Work]) -> bool:
        """Whether the pool holds all open sessions plus what the works add."""
        return self.used_tokens + sum(len(w.tokens) + len(w.draft) for w in works) <= self._pool_tokens

    def score(self, works: Sequence[Work]) -> list[Rows]:
        """Look every row up. Raises `TargetError` when the pool or the context is too small."""
        if not self.fits(works):
            raise TargetError("the toy pool is exhausted: ask fits() first")
        total = sum(len(w.tokens) + len(w.draft) for w in works)
        return [self._score(work, total) for work in works]

    def _score(self, work: Work, total: int) -> Rows:
        session = work.session
        assert isinstance(session, ToySession)
        session.tokens.extend(work.tokens)
        session.pending = work.draft
        if len(session.tokens) + tree.depth(work.draft) > self._context:
            raise TargetError("a draft reaches past the toy context")
        if not work.logits:
            return Rows(np.zeros((0, self._vocab_size), np.float32))
        rows = [self._row(tuple(session.tokens[-self._order :]))]
        for node in range(len(work.draft)):
            path = tuple(work.draft.tokens[i] for i in work.draft.path(node))
            rows.append(self._row((*session.tokens[-self._order :], *path)[-self._order :]))
        logits = np.stack(rows)
        if self._row_dependent:
            logits = logits + 0.5 * np.sin(np.arange(self._vocab_size) * total).astype(np.float32)
        return Rows(logits)

    def _row(self, context: tuple[int, ...]) -> Logits:
        row = self._rows.get(context)
        if row is None:
            row = self._rows[context] = self._make_row(context)
            if len(self._rows) > 100_000:  # the bound of the row cache: rows are a pure function, so start again
                self._rows = {context: row}
        return row

    def _make_row(self, context: tuple[int, ...]) -> Logits:
        for start in range(len(context) + 1):
            if context[start:] in self._table:
                return self._table[context[start:]]
        rng = np.random.default_rng([self._seed, *context])
        return (rng.normal(size=self._vocab_size) * self._sharpness).astype(np.float32)


class ToySession:
    """A token list; the cache of a Markov model is nothing more (`protocols.Session`)."""

    def __init__(self, target: ToyTarget, tokens: list[int], salt: str) -> None:
        self._target = target
        self.tokens = tokens
        self.salt = salt
        self.pending = Draft()

    def settle(self, path: Sequence[int]) -> None:
        """Append the accepted nodes' tokens."""
        self.tokens.extend(self.pending.tokens[node] for node in path)
        self.pending = Draft()

    def sync(self, tokens: Sequence[int]) -> int:
        """Cut to the common prefix."""
        keep = _common(self.tokens, tokens)
        del self.tokens[keep:]
        self.pending = Draft()
        return keep

    def close(self) -> None:
        """Give the slots back."""
        self.tokens = []
        self._target.sessions = [session for session in self._target.sessions if session is not self]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
