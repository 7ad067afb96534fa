"""The target as its own draft: everything is accepted, so what is not accepted is a fault in the loop.

Knows the target's rows and the request's sampling. Does not know the engine's sessions; it opens its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sooner import tree
from sooner.draft.options import at_least
from sooner.protocols import Context, Session, Target
from sooner.sampling import Processor
from sooner.types import Draft, Logits, Probabilities, Rows, Step, Work

__all__ = ["SelfDrafter"]

_CHUNK = 256
"""Most known tokens fed in one pass, so that a long prompt does not need one huge pass."""


class SelfDrafter:
    """Drafts up to ``max`` tokens with ``target``, one pass each: the acceptance is 1 under every rule.

    Greedy at temperature 0; by the target's own noise under the coupled rule (arg-min E / p, its very draw); sampled
    from the processed law, with q rows, under the ratio rules. ``eos_ids``: the ids that ``min_tokens`` bans.
    Its cache holds each live sequence a second time and is cut back by ``sync``; where the target has no room left
    for that, it drafts nothing. Bad words are strings to it, so a ban of one costs acceptance there, nothing else.
    """

    name = "self"

    def __init__(self, target: Target, *, max: int = 4, eos_ids: Sequence[int] = ()) -> None:
        self._target = target
        self._max = at_least(1, max=max)
        self._eos_ids = tuple(eos_ids)
        self._states: dict[int, _State] = {}

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """A chain per context, drafted side by side."""
        runs = [self._start(context) for context in contexts]
        while waiting := [run for run in runs if run.todo]:
            works = [run.work() for run in waiting]
            if not self._target.fits(works):
                self._close_all()
                break
            for run, work, rows in zip(waiting, works, self._target.score(works), strict=True):
                run.advance(work, rows)
        return [tree.chain(run.drafted, 1.0, self.name, q=run.q or None) for run in runs]

    def observe(self, step: Step, rows: Rows) -> None:
        """Nothing to learn: the session is cut back to the kept tokens at the next proposal."""

    def forget(self, id: int) -> None:
        """Close the sequence's session."""
        state = self._states.pop(id, None)
        if state is not None:
            state.session.close()

    def _close_all(self) -> None:
        for id in list(self._states):
            self.forget(id)

    def _start(self, context: Context) -> _Run:
        # The last drafted token is never fed, so one token more than the context's room can be drafted.
        room = self._target.context - len(context.tokens) + 1
        budget = min(self._max, context.budget, room)
        if budget < 1:
            return _Run(context, None, budget, [])
        state = self._states.get(context.id)
        if state is None:
            state = self._states[context.id] = self._open(context)
        state.read(context)
        kept = state.session.sync(context.tokens[:-1])
        return _Run(context, state, budget, list(context.tokens[kept:]))

    def _open(self, context: Context) -> _State:
        processor = Processor(
            context.sampling,
            vocab_size=self._target.vocab_size,
            seed=0,
            prompt=tuple(context.tokens[: context.prompt_length]),
            eos_ids=self._eos_ids,
        )
        # A salt of its own: no prefix crosses from one request's salt to another's by way of the drafter.
        return _State(self._target.open((), salt=f"sooner.draft.self/{context.id}"), processor)


@dataclass(slots=True)
class _State:
    """One sequence between steps: its session, and its processors with ``emitted`` output tokens counted."""

    session: Session
    processor: Processor
    emitted: int = 0

    def read(self, context: Context) -> None:
        output = context.tokens[context.prompt_length + self.emitted :]
        for token in output:
            self.processor.push(token)
        self.emitted += len(output)


@dataclass(slots=True)
class _Run:
    """One sequence within a proposal: what is still to be fed, and what has been drafted."""

    context: Context
    state: _State | None
    budget: int
    todo: list[int]
    drafted: list[int] = field(default_factory=list)
    q: list[Probabilities] = field(default_factory=list)

    def work(self) -> Work:
        assert self.state is not None
        return Work(self.state.session, tuple(self.todo[:_CHUNK]), logits=len(self.todo) <= _CHUNK)

    def advance(self, work: Work, rows: Rows) -> None:
        """Draft one more token, once all known tokens are fed."""
        del self.todo[: len(work.tokens)]
        if work.logits:
            token = self._pick(rows.logits[0])
            self.drafted.append(token)
            if len(self.drafted) < self.budget:
                self.todo = [token]

    def _pick(self, row: Logits) -> int:
        assert self.state is not None
        p = self.state.processor.law(row, self.drafted).p
        if self.context.coins is not None:
            self.q.append(p)
            return self.context.coins.draw(p)
        if self.context.noise is None:
            return int(p.argmax())
        ids = np.flatnonzero(p)
        position = len(self.context.tokens) - self.context.prompt_length + len(self.drafted)
        return int(ids[(self.context.noise(position, ids.tolist()) / p[ids]).argmin()])
