"""Drafts with a trained head: it reads the rows the target leaves behind and guesses on from its own output.

Knows which rows belong to which tokens, and how guesses become a tree. Does not know the head's arithmetic or engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sooner.draft.account import Account
from sooner.draft.growth import sharpened
from sooner.draft.options import at_least, within
from sooner.errors import DraftError
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Rows, Step

__all__ = ["Guess", "HeadDrafter", "HeadRunner"]

_BACKLOG = 64
"""Rows kept for a sequence that is not drafted for. After a longer pause its session begins anew with these: a head
reaches back no further than its window anyway."""

_LEAST = 0.03
"""A guess less likely than this after its parent is not worth its bookkeeping."""


class Guess(Protocol):
    """The likeliest next tokens by a head, best first."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Ids of the target's vocabulary."""
        ...

    @property
    def chances(self) -> tuple[float, ...]:
        """Their probabilities."""
        ...


class HeadRunner(Protocol):
    """A head that runs: `sooner.targets.openvino.head.OpenVINOHead` is one."""

    def open(self) -> Any:
        """A session that has seen nothing."""
        ...

    def start(
        self, sessions: Sequence[Any], rows: Sequence[NDArray[np.float32]], tokens: Sequence[Sequence[int]]
    ) -> Sequence[Guess]:
        """Feed rows of the target with the tokens that followed them, at least one each; guess what comes next."""
        ...

    def extend(self, sessions: Sequence[Any], tokens: Sequence[int]) -> Sequence[Guess]:
        """Go on from each session's own state as if ``tokens`` came next."""
        ...


@dataclass(slots=True)
class _State:
    """One sequence: its head session, and the pairs (row, next token) that the session has not seen yet."""

    session: Any
    rows: list[NDArray[np.float32]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Growing:
    """A tree in the making: a chain of the likeliest, with siblings. ``value``: the chance that its end is reached."""

    context: Context
    state: _State
    depth: int
    guess: Guess
    end: int = ROOT
    value: float = 1.0
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)

    def goes_on(self, least: float) -> bool:
        """Whether its end is reached often enough, and more may be added."""
        return self.value >= least and len(self.tokens) < self.context.budget


class HeadDrafter:
    """EAGLE-3 (2503.01840) drafting: a chain of ``depth`` guesses, each with up to ``width`` - 1 siblings.

    ``path``: the folder of the head (none: the one made or shipped for this model); ``force`` tries a head made for
    another target. ``max``: most nodes. The chain ends early where it is reached with a chance below ``least``: each
    guess is a pass of the head. ``thrifty``: guess only as deep as pays at the pace reached so far, not at all where
    it does not. Under the coupled rule at temperature > 0 the chain follows what the noise favours. A sequence is
    drafted for from its second step on: rows of the prompt are not shown. Raises `DraftError`.
    """

    name = "head"

    def __init__(
        self,
        *,
        open_head: Callable[[str, bool], HeadRunner],
        path: str = "",
        force: bool = False,
        max: int = 8,
        depth: int = 4,
        width: int = 3,
        least: float = 0.2,
        thrifty: bool = True,
    ) -> None:
        self._max = at_least(1, max=max)
        self._depth = at_least(1, depth=depth)
        self._width = at_least(1, width=width)
        self._least = within(0.0, 1.0, least=least)
        self._account = Account(self.name, depth) if thrifty else None
        self._head = open_head(path, force)
        self._states: dict[int, _State] = {}

    def reach(self, context: Context) -> float:
        """Tokens of the text that a draft of full depth foresees in the mean (see `cascade.Costly`)."""
        return self._account.reach(context) if self._account else float("inf")

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """A tree per context, the heads of all in one pass per level; empty where no row of the target was seen yet."""
        depths = self._account.depths(contexts) if self._account else [self._depth] * len(contexts)
        wanted = {context.id: depth for context, depth in zip(contexts, depths, strict=True)}
        ready = [c for c in contexts if wanted[c.id] and c.budget > 0 and self._has_rows(c.id)]
        if not ready:
            return [EMPTY_DRAFT for _ in contexts]
        begun = time.perf_counter()
        states = [self._states[context.id] for context in ready]
        guesses = self._head.start(
            [state.session for state in states],
            [np.stack(state.rows) for state in states],
            [list(state.tokens) for state in states],
        )
        for state in states:
            state.rows.clear()
            state.tokens.clear()
        growing = [_Growing(c, s, wanted[c.id], guess) for c, s, guess in zip(ready, states, guesses, strict=True)]
        self._grow(growing)
        drafts = [_draft(tree, min(self._max, tree.context.budget), self.name) for tree in growing]
        if self._account:
            self._account.drafted(ready, drafts, 1e3 * (time.perf_counter() - begun), {})
        made = {context.id: draft for context, draft in zip(ready, drafts, strict=True)}
        return [made.get(context.id, EMPTY_DRAFT) for context in contexts]

    def observe(self, step: Step, rows: Rows) -> None:
        """Keep the rows of the accepted path, each with the token that followed it."""
        if rows.hidden is None:
            raise DraftError("the target shows no hidden rows: load the model with this head among its drafters")
        if not step.tokens:
            return
        state = self._states.get(step.sequence)
        if state is None:
            state = self._states[step.sequence] = _State(self._head.open())
        kept = [0, *(node + 1 for node in step.path)][: len(step.tokens)]
        state.rows += [rows.hidden[row].copy() for row in kept]
        state.tokens += step.tokens[: len(kept)]
        if len(state.rows) > _BACKLOG:
            del state.rows[:-_BACKLOG], state.tokens[:-_BACKLOG]
            state.session = self._head.open()
        if self._account:
            self._account.observe(step)

    def forget(self, id: int) -> None:
        """Drop the sequence's session."""
        self._states.pop(id, None)
        if self._account:
            self._account.forget(id)

    def _has_rows(self, id: int) -> bool:
        state = self._states.get(id)
        return state is not None and bool(state.tokens)

    def _grow(self, growing: list[_Growing]) -> None:
        level = 0
        while True:
            for tree in growing:
                _add_level(tree, level, self._width)
            level += 1
            growing = [tree for tree in growing if level < tree.depth and tree.goes_on(self._least)]
            if not growing:
                return
            ends = [tree.tokens[tree.end] for tree in growing]
            for tree, guess in zip(growing, self._head.extend([t.state.session for t in growing], ends), strict=True):
                tree.guess = guess


def _add_level(tree: _Growing, level: int, width: int) -> None:
    """Hang the best guesses below the chain's end and move the end to the one likeliest to be accepted."""
    found = [(i, q) for i, q in zip(tree.guess.ids, tree.guess.chances, strict=True) if q >= _LEAST]
    chances = [q for _, q in found]
    if tree.context.noise is not None and found:
        position = len(tree.context.tokens) - tree.context.prompt_length + level
        noise = tree.context.noise(position, [token for token, _ in found])
        chances = [sharpened(q, float(e)) for q, e in zip(chances, noise, strict=True)]
    order = sorted(range(len(found)), key=lambda i: -chances[i])[:width]
    if not order:
        tree.value = 0.0
        return
    first = len(tree.tokens)
    for i in order:
        tree.tokens.append(found[i][0])
        tree.parents.append(tree.end)
        tree.confidence.append(found[i][1])
    tree.end = first
    tree.value *= chances[order[0]]


def _draft(tree: _Growing, budget: int, name: str) -> Draft:
    """The ``budget`` likeliest nodes by the product of their confidences; no parent is less likely than its child."""
    reach: list[float] = []
    for parent, q in zip(tree.parents, tree.confidence, strict=True):
        reach.append(q * (1.0 if parent == ROOT else reach[parent]))
    kept = sorted(sorted(range(len(reach)), key=lambda node: (-reach[node], node))[:budget])
    place = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
    return Draft(
        tuple(tree.tokens[node] for node in kept),
        tuple(place[tree.parents[node]] for node in kept),
        tuple(min(1.0, tree.confidence[node]) for node in kept),
        (name,) * len(kept),
    )
