"""Drafts for the texts of one `generate` call: sooner's drafters and controller, asked for chains of one length.

Knows the drafter and controller contracts, and that a batch keeps equally many tokens of every text. Does not know the
model, its cache, or how tokens are drawn.

To the controller the batch is one text: its draft's chances are those of all texts agreeing, and a row of it is a row
of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sooner import tree
from sooner.integrations.guarded import Guarded
from sooner.protocols import Context, Controller, Drafter
from sooner.tree import best_path
from sooner.types import EMPTY_DRAFT, TARGET, Draft, Rows, Sampling, Step

__all__ = ["Figures", "Guessing", "best_path"]


@dataclass(slots=True)
class Figures:
    """What a `generate` call took. ``drafted`` and ``accepted`` are tokens of all texts together, ``passes`` those of
    the model, the prompt's among them; ``tokens``: emitted by each text of the batch. Times are milliseconds."""

    passes: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_ms: float = 0.0
    score_ms: float = 0.0
    verify_ms: float = 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens of a text per pass."""
        return self.tokens / self.passes if self.passes else 0.0


class Guessing:
    """Guesses for ``texts`` (their prompts' tokens, which grow here), each under an id of its own.

    ``failed`` is told of a drafter that raises: it is not asked again, and the texts go on without drafts.
    ``second``: what a pass over two rows costs more than one over a single row, as a share of it.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        controller: Controller,
        texts: list[list[int]],
        *,
        ids: Sequence[int],
        sampling: Sampling,
        vocab_size: int,
        failed: Callable[[Exception], None],
        second: float = 0.0,
    ) -> None:
        self.figures = Figures()
        self._guarded = Guarded(drafter, failed)
        self._controller = controller
        self._texts = texts
        self._contexts = [
            Context(id=id, tokens=text, prompt_length=len(text), budget=0, sampling=sampling)
            for id, text in zip(ids, texts, strict=True)
        ]
        self._vocab_size = vocab_size
        self._second = second
        self._live = list(range(len(texts)))
        self._drafts: dict[int, Draft] = {}
        self._shared = EMPTY_DRAFT
        self._draft_ms = 0.0

    def draft(self, ids: Any, padded: Sequence[int | None], room: int) -> Any:
        """``[B, n]`` tokens on the device of ``ids``; an ended text drafts what it is filled with."""
        begin = time.perf_counter()
        self._live = [i for i, token in enumerate(padded) if token is None]
        self._drafts, self._shared = {}, EMPTY_DRAFT
        n = self._choose(room) if self._guarded.drafter is not None and room > 0 else 0
        self._drafts = {i: tree.prune(draft, range(n)) for i, draft in self._drafts.items()}
        self._shared = tree.prune(self._shared, range(n))
        rows = [list(self._drafts[i].tokens) if i in self._drafts else [padded[i]] * n for i in range(len(padded))]
        self._draft_ms = (time.perf_counter() - begin) * 1e3
        return ids.new_tensor(rows).reshape(len(padded), n)

    def scored(self, logits: Any, ids: Any, kept: int, score_ms: float, verify_ms: float) -> None:
        """Let controller and drafter learn from a pass and what was kept of it."""
        emitted = ids[:, -kept:].tolist()
        figures = self.figures
        figures.passes += 1
        figures.tokens += kept
        figures.drafted += len(self._shared) * len(self._live)
        figures.accepted += (kept - 1) * len(self._live)
        figures.draft_ms += self._draft_ms
        figures.score_ms += score_ms
        figures.verify_ms += verify_ms
        for i in self._live:
            self._texts[i] += emitted[i]
        lead = self._live[0]
        times = score_ms, verify_ms
        self._controller.observe(self._step(lead, self._shared, emitted[lead], times))
        for i in self._live if self._guarded.drafter is not None else ():
            self._learn(self._step(i, self._drafts.get(i, EMPTY_DRAFT), emitted[i], times), logits[i])

    def close(self) -> None:
        """The call is over."""
        for context in self._contexts:
            self._guarded.forget(context.id)

    def _choose(self, room: int) -> int:
        """Ask for drafts; how many tokens of them are worth a pass."""
        lead = self._contexts[self._live[0]]
        (budget,) = self._controller.budgets([lead])
        if budget < 1:
            return 0
        contexts = [replace(self._contexts[i], budget=budget) for i in self._live]
        found = self._guarded.ask(lambda drafter: drafter.propose(contexts))
        if found is None or self._guarded.drafter is None:
            return 0
        name = self._guarded.drafter.name
        clean = [tree.sanitise(draft, self._vocab_size, room, budget, name) for draft in found]
        if len(clean) != len(contexts):
            return 0
        self._drafts = dict(zip(self._live, map(best_path, clean), strict=True))
        self._shared = _agreeing(list(self._drafts.values()))
        (chosen,) = self._controller.select([lead], [self._shared])
        n = len(best_path(chosen))
        return 0 if n == 1 and chosen.confidence[0] < self._second else min(n, len(self._shared))

    def _step(self, i: int, draft: Draft, tokens: Sequence[int], times: tuple[float, float]) -> Step:
        accepted = len(tokens) - 1
        return Step(
            sequence=self._contexts[i].id,
            choice=0,
            index=self.figures.passes - 1,
            draft=draft,
            path=tuple(range(accepted)),
            tokens=tuple(tokens),
            sources=(*draft.sources[:accepted], TARGET),
            text="",
            rows=1 + len(draft),
            pass_rows=1 + len(draft),
            draft_ms=self._draft_ms,
            score_ms=times[0],
            verify_ms=times[1],
        )

    def _learn(self, step: Step, logits: Any) -> None:
        rows = Rows(logits.float().cpu().numpy())
        self._guarded.ask(lambda drafter: drafter.observe(step, rows))


def _agreeing(chains: Sequence[Draft]) -> Draft:
    """The first of ``chains``, as long as the shortest, with the chances of all being right."""
    n = min(map(len, chains))
    first = tree.prune(chains[0], range(n))
    if len(chains) == 1 or not n:
        return first
    return replace(first, confidence=tuple(np.prod([chain.confidence[:n] for chain in chains], axis=0).tolist()))
