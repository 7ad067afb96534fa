"""Watches what a drafter would have guessed at every position of a text that is decoded plainly.

Knows drafts and rows. Does not know time: since no draft changes a text, where a step of any length would have ended
follows from what was guessed and what was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from sooner import tree
from sooner.protocols import Context, Drafter
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Probabilities, Rows, Step

__all__ = ["Chained", "Counted", "Shadow", "Together", "Trail", "chain_of"]


@runtime_checkable
class Counted(Protocol):
    """A drafter whose guesses follow a distribution that can be asked for."""

    def law(self, last: int, temperature: float) -> tuple[Sequence[int], Probabilities]:
        """Ids and probabilities of the guess after token ``last``."""
        ...


def chain_of(draft: Draft) -> tuple[int, ...]:
    """The first child of the first child and so on: what a drafter is surest of, as a chain of nodes."""
    nodes: list[int] = []
    while children := draft.children(nodes[-1] if nodes else ROOT):
        nodes.append(max(children, key=lambda node: (draft.confidence[node], -node)))
    return tuple(nodes)


class Chained:
    """``inner`` cut down to its surest chain, whatever tree it proposes."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        """The inner one's."""
        return self._inner.name

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """One chain per context."""
        drafts = zip(contexts, self._inner.propose(contexts), strict=True)
        return [tree.chain([d.tokens[i] for i in chain_of(d)][: c.budget], 0.5, self.name) for c, d in drafts]

    def observe(self, step: Step, rows: Rows) -> None:
        """The inner one learns."""
        self._inner.observe(step, rows)

    def forget(self, id: int) -> None:
        """The inner one forgets."""
        self._inner.forget(id)


@dataclass(slots=True)
class Trail:
    """One text: its ``tokens``, the ``chains`` guessed before each, and the ``chances`` that the first guess of each is
    kept.

    A chance is the paper's beta. Where guesses follow a law q that can be asked for, it is ``sum(min(p, q))``; else it
    is one or zero, as the text has it, which is the same in the mean and right also for drafters that hear the target's
    noise. Where nobody was asked (the engine drafts neither the first nor the last token) there is no chance.
    """

    tokens: list[int] = field(default_factory=list)
    chains: list[tuple[int, ...]] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def kept(self, at: int) -> int:
        """How many guesses of the chain at position ``at`` the text bears out."""
        kept = 0
        for guess, token in zip(self.chains[at], self.tokens[at:], strict=False):
            if guess != token:
                break
            kept += 1
        return kept

    def steps(self, length: int) -> list[tuple[int, int]]:
        """(guesses checked, guesses kept) of each step that drafting ``length`` tokens would have taken, but for the
        first, which comes with the prompt."""
        found, at = [], 0
        while at < len(self.tokens):
            room = len(self.tokens) - at - 1  # the last token is always the target's own
            drafted = min(len(self.chains[at]), length, room)
            kept = min(self.kept(at), drafted)
            found.append((drafted, kept))
            at += kept + 1
        return found[1:]


class Shadow:
    """Asks ``inner`` at every step and drafts nothing. ``trails``: one per text, in order of appearance."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self._asked: dict[int, tuple[Context, tuple[int, ...], int]] = {}
        self._open: dict[int, Trail] = {}
        self.trails: list[Trail] = []

    @property
    def name(self) -> str:
        """The inner one's."""
        return self._inner.name

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """Nothing, once the inner one has said what it would."""
        for context, draft in zip(contexts, self._inner.propose(contexts), strict=True):
            chain = tuple(draft.tokens[node] for node in chain_of(draft))
            self._asked[context.id] = (context, chain, context.tokens[-1])
        return [EMPTY_DRAFT] * len(contexts)

    def observe(self, step: Step, rows: Rows) -> None:
        """Compare what was guessed with the row and the token that came."""
        trail = self._open.get(step.sequence)
        if trail is None:
            trail = self._open[step.sequence] = Trail()
            self.trails.append(trail)
        context, chain, last = self._asked.pop(step.sequence, (None, (), 0))
        trail.tokens += step.tokens
        trail.chains.append(chain)
        if context is not None:
            about = (last, context.sampling.temperature)
            trail.chances.append(self._chance(rows, step.tokens[0], chain, about))
        self._inner.observe(step, rows)

    def forget(self, id: int) -> None:
        """The text is complete."""
        self._open.pop(id, None)
        self._asked.pop(id, None)
        self._inner.forget(id)

    def _chance(self, rows: Rows, token: int, chain: Sequence[int], asked: tuple[int, float]) -> float:
        last, temperature = asked
        if temperature == 0.0 or not isinstance(self._inner, Counted):
            return float(bool(chain) and chain[0] == token)
        ids, q = self._inner.law(last, temperature)
        logits = rows.logits[0].astype(np.float64)
        weights = np.exp((logits - logits.max()) / temperature)
        return float(np.minimum(weights[list(ids)] / weights.sum(), q).sum())


class Together:
    """Several shadows at one text."""

    name = "shadows"

    def __init__(self, shadows: Sequence[Shadow]) -> None:
        self._shadows = shadows

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """Nothing, once all have been asked."""
        for shadow in self._shadows:
            shadow.propose(contexts)
        return [EMPTY_DRAFT] * len(contexts)

    def observe(self, step: Step, rows: Rows) -> None:
        """All learn."""
        for shadow in self._shadows:
            shadow.observe(step, rows)

    def forget(self, id: int) -> None:
        """All forget."""
        for shadow in self._shadows:
            shadow.forget(id)
