"""Drafts with a model: one pass per level of the tree, all sequences side by side, each with a session of its own.

Knows the model's sessions, rows and the shape of a draft. Does not know the engine's sessions, nor what a token means:
a `Tongue` says how a row reads in the ids that are drafted, and what the model is fed for one of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sooner.protocols import Context, Session, Target
from sooner.sampling import Processor
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Logits, Probabilities, Work

__all__ = ["Job", "Levels", "Processors", "Tongue"]

_CHUNK = 256
"""Most known tokens fed in one pass, so that a long prompt does not need one huge pass."""

_FEW = 16
"""A pass that feeds no sequence more known tokens than this drafts; one that feeds more reads a prompt."""

_HEAD = 14.0
"""Candidates lie within so many nats of the likeliest: what is below wins a draw less than once in a million."""


class Tongue(Protocol):
    """How a model's rows and inputs relate to the ids that are drafted."""

    def row(self, row: Logits) -> Logits:
        """The model's row ``[V']`` over the drafted ids, ``[V]``; -inf where it has no such token."""
        ...

    def ids(self, token: int) -> Sequence[int]:
        """What the model is fed for a drafted token."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence's share in a proposal.

    ``known``: the model's ids of the text so far. ``depth``: longest path; ``width``: most children per node; the shape
    depends on them and on ``context.budget`` alone, since a shape that follows the values would be biased under the
    ratio rules. ``ends``: drafted tokens behind which nothing follows.
    """

    context: Context
    known: Sequence[int]
    tongue: Tongue
    processor: Processor
    depth: int
    width: int = 1
    ends: frozenset[int] = frozenset()


class Levels:
    """Drafts chains with siblings at every level: the first child is followed, the others cost no pass.

    Children are the likeliest tokens at temperature 0; under the coupled rule those with the smallest E / q (the
    target's own draw if q = p; Daliri, Musco, Suresh 2408.07978); under the ratio rules they are drawn from q without
    replacement, and q is attached. A text longer than the model's context is read through a window. Where the cache
    has no room, the longest text is not drafted for any more until it is forgotten.

    Of the last proposal, ``level_ms`` went into levels, ``read_ms`` by sequence into reading texts not known before.
    """

    def __init__(self, target: Target, name: str) -> None:
        self._target = target
        self._name = name
        self._states: dict[int, _State] = {}
        self.level_ms = 0.0
        self.read_ms: dict[int, float] = {}

    def propose(self, jobs: Sequence[Job]) -> list[Draft]:
        """One draft per job, of at most ``context.budget`` nodes."""
        self.level_ms, self.read_ms = 0.0, {}
        runs = [self._start(job) for job in jobs]
        while waiting := [run for run in runs if run.todo]:
            works = [run.work() for run in waiting]
            if not self._target.fits(works):
                self._give_up(max(waiting, key=_Run.length))
                continue
            begin = time.perf_counter()
            for run, work, rows in zip(waiting, works, self._target.score(works), strict=True):
                run.read(work)
                if work.logits:
                    run.grow(rows.logits[0], self._target.context)
            self._spent(waiting, works, (time.perf_counter() - begin) * 1e3)
        return [run.draft(self._name) for run in runs]

    def forget(self, id: int) -> None:
        """Close the sequence's session."""
        state = self._states.pop(id, None)
        if state is not None and state.session is not None:
            state.session.close()

    def _start(self, job: Job) -> _Run:
        depth = min(job.depth, job.context.budget)
        if depth < 1 or not job.known:
            return _Run(job, None, 0, [])
        state = self._states.get(job.context.id)
        if state is None:
            # A salt of its own: no prefix crosses from one request's salt to another's by way of the drafter.
            session = self._target.open((), salt=f"sooner.draft.{self._name}/{job.context.id}")
            state = self._states[job.context.id] = _State(session)
        if state.session is None:
            return _Run(job, None, 0, [])
        known = state.window(job.known, self._target.context)
        kept = state.session.sync(known[:-1])
        # The last drafted token is never fed, so one token more than the context's room can be drafted.
        room = self._target.context - len(known) + 1
        return _Run(job, state, min(depth, room), list(known[kept:]))

    def _spent(self, runs: Sequence[_Run], works: Sequence[Work], ms: float) -> None:
        reading = [run.job.context.id for run, work in zip(runs, works, strict=True) if len(work.tokens) > _FEW]
        for id in reading:
            self.read_ms[id] = self.read_ms.get(id, 0.0) + ms / len(reading)
        self.level_ms += 0.0 if reading else ms

    def _give_up(self, run: _Run) -> None:
        assert run.state is not None
        assert run.state.session is not None
        run.state.session.close()
        run.state.session = None
        run.todo.clear()


@dataclass(slots=True)
class _State:
    """One sequence between steps: its session (None: given up) and where in the text the model's window starts."""

    session: Session | None
    start: int = 0

    def window(self, known: Sequence[int], context: int) -> Sequence[int]:
        """The part of ``known`` that the session holds; it moves by half a context, since every move reads it anew."""
        if self.start and len(known) - self.start < context // 4:  # the text became another, shorter one
            self.start = 0
        if len(known) - self.start > context:
            self.start = len(known) - context // 2
        return known[self.start :] if self.start else known


@dataclass(slots=True)
class _Run:
    """One sequence within a proposal: what is still to be fed, and the tree so far. ``at`` is the followed node."""

    job: Job
    state: _State | None
    depth: int
    todo: list[int]
    at: int = ROOT
    path: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    q: dict[int, Probabilities] = field(default_factory=dict)

    @property
    def session(self) -> Session:
        assert self.state is not None
        assert self.state.session is not None
        return self.state.session

    def length(self) -> int:
        """Tokens that the session holds after the coming pass."""
        return len(self.session.tokens) + len(self.todo)

    def work(self) -> Work:
        return Work(self.session, tuple(self.todo[:_CHUNK]), logits=len(self.todo) <= _CHUNK)

    def read(self, work: Work) -> None:
        del self.todo[: len(work.tokens)]

    def grow(self, row: Logits, context: int) -> None:
        """One more level, and what has to be fed for the next."""
        job = self.job
        law = job.processor.law(job.tongue.row(row), self.path)
        left = job.context.budget - len(self.tokens) - (self.depth - len(self.path) - 1)
        width = min(job.width, left)
        if job.context.coins is not None:
            tokens, shares = self._sampled(law.p, width)
        else:
            ids, q = law.near(_HEAD)
            tokens, shares = self._best(ids, q, width)
        first = len(self.tokens)
        self.tokens += tokens
        self.parents += [self.at] * len(tokens)
        self.confidence += shares
        self.at = first
        self.path.append(tokens[0])
        if len(self.path) < self.depth and tokens[0] not in job.ends:
            fed = list(job.tongue.ids(tokens[0]))
            if self.length() + len(fed) <= context:
                self.todo = fed

    def _best(self, ids: NDArray[np.uint64], q: Probabilities, width: int) -> tuple[list[int], list[float]]:
        """The ids with the largest q / E (E = 1 without noise), each with its share of that."""
        context = self.job.context
        strength = q
        if context.noise is not None:
            position = len(context.tokens) - context.prompt_length + len(self.path)
            strength = q / context.noise(position, ids.tolist())
        order = _largest(strength, width)
        shares = strength[order] / strength.sum()
        return ids[order].tolist(), shares.tolist()

    def _sampled(self, p: Probabilities, width: int) -> tuple[list[int], list[float]]:
        """Up to ``width`` ids drawn from ``p`` without replacement, and their probabilities in it."""
        coins = self.job.context.coins
        assert coins is not None
        self.q[self.at] = p
        weights, tokens = p.copy(), [coins.draw(p)]
        weights[tokens[0]] = 0.0
        while len(tokens) < width and weights.any():
            tokens.append(coins.draw(weights))
            weights[tokens[-1]] = 0.0
        return tokens, p[tokens].tolist()

    def draft(self, name: str) -> Draft:
        if not self.tokens:
            return EMPTY_DRAFT
        sources = (name,) * len(self.tokens)
        return Draft(tuple(self.tokens), tuple(self.parents), tuple(self.confidence), sources, self.q)


def _largest(values: Probabilities, count: int) -> NDArray[np.intp]:
    """The places of the ``count`` largest values, best first, of equal ones the first; of tens of thousands only these
    are sorted."""
    places = np.arange(len(values))
    if count < len(values):
        places = np.flatnonzero(values >= np.partition(values, -count)[-count])
    return places[np.argsort(-values[places], kind="stable")][:count]


class Processors:
    """The logits processors of live sequences, each fed its output so far.

    Bad words are strings to a drafter, so a ban of one costs acceptance there, nothing else.
    """

    def __init__(self, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._kept: dict[int, tuple[Processor, int]] = {}

    def read(self, context: Context) -> Processor:
        """The processor of ``context``, up to date."""
        processor, length = self._kept.get(context.id) or (self._make(context), context.prompt_length)
        for token in context.tokens[length:]:
            processor.push(token)
        self._kept[context.id] = (processor, len(context.tokens))
        return processor

    def forget(self, id: int) -> None:
        """Drop a sequence; an unknown id is fine."""
        self._kept.pop(id, None)

    def _make(self, context: Context) -> Processor:
        return Processor(
            context.sampling,
            vocab_size=self._vocab_size,
            seed=0,
            prompt=tuple(context.tokens[: context.prompt_length]),
            eos_ids=self._eos_ids,
            bans=context.bans,
        )
