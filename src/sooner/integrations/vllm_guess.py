"""Drafts for the requests of a vLLM batch: after each pass, sooner's drafters and controller are asked for the next.

Knows the drafter and controller contracts and rows of tokens. Does not know vLLM: its own rejection sampler
decides how much of a draft is kept, which is seen here by the tokens that came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sooner import tree
from sooner.integrations.guarded import Guarded
from sooner.integrations.vllm_gauge import Gauge, Pacing
from sooner.integrations.vllm_texts import Row, Text, Texts
from sooner.protocols import Context, Controller, Drafter
from sooner.types import EMPTY_DRAFT, TARGET, Draft, Rows, Sampling, Step

__all__ = ["Guessing", "Scored"]

_SAMPLING = Sampling()
"""What drafters are told of a request's sampling, which the hook does not say."""

_ASKED = 24
"""Nodes asked of drafters while passes are measured, as controllers ask for."""

_FOLLOW = 0.1
"""How fast the running estimate of what drafting for one request takes follows."""

_PADDING = "measurement"
"""The source of tokens that only make a measured pass as wide as it has to be."""


class Scored(Protocol):
    """The logits of the pass just over: of each request its last known token's row, then those of its draft."""

    @property
    def count(self) -> int:
        """Rows in all."""
        ...

    def rows(self, begin: int, end: int) -> NDArray[np.float32]:
        """``[end - begin, V]``."""
        ...


class Guessing:
    """``context``: the most tokens of a request. ``most``: draft tokens a request may have in a pass."""

    def __init__(
        self,
        drafter: Drafter,
        pacing: Pacing,
        texts: Texts,
        *,
        vocab_size: int,
        context: int,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._guarded = Guarded(drafter)
        self._pacing = pacing
        self._texts = texts
        self._vocab_size = vocab_size
        self._context = context
        self._most = most
        self._clock = clock
        self._returned = 0.0
        self._draft_ms = 0.0
        self._pass_ms = 0.0
        self._each_ms = 0.0
        self._turn = 0
        self._deciding: Controller | None = None
        self._measured: tuple[Gauge, int] | None = None

    def next(self, rows: Sequence[Row], scored: Scored | None) -> list[list[int]]:
        """The tokens to draft for each of ``rows`` after a pass; learns from that pass first. Never raises."""
        begin = self._clock()
        pass_ms = (begin - self._returned) * 1e3 if self._returned else 0.0
        found, gone = self._texts.meet(rows)
        for text in gone:
            self._guarded.forget(text.id)
        self._pass_ms = pass_ms
        self._learn(found, scored, pass_ms)
        self._deciding = self._measured = None
        live = [text for text in found if text is not None]
        for text in live:
            text.draft = EMPTY_DRAFT
        if self._guarded.drafter is not None and live:
            self._draft(live)
        self._returned = self._clock()
        self._draft_ms = (self._returned - begin) * 1e3
        return [[] if text is None else list(text.draft.tokens) for text in found]

    def _draft(self, live: Sequence[Text]) -> None:
        gauge = self._pacing.measuring(len(live))
        if gauge is not None and gauge.wanted is not None:
            self._measure(live, gauge, gauge.wanted)
            return
        controller = self._pacing.controller(len(live))
        contexts = [self._about(text) for text in live]
        budgets = controller.budgets(contexts)
        self._deciding = controller
        asked = self._some([i for i, budget in enumerate(budgets) if budget > 0 and self._room(live[i]) > 0])
        chains = self._ask([replace(contexts[i], budget=budgets[i]) for i in asked], [live[i] for i in asked])
        if not chains:
            return
        chosen = controller.select([contexts[i] for i in asked], chains)
        for i, draft in zip(asked, chosen, strict=True):
            live[i].draft = tree.best_path(draft)

    def _some(self, asked: list[int]) -> list[int]:
        """Of the requests to draft for, as many as drafters can be asked about while a pass takes, in turns: the others
        would wait for them longer than a draft is worth."""
        most = max(1, int(self._pass_ms / self._each_ms)) if self._each_ms else len(asked)
        if most >= len(asked):
            return asked
        begin = self._turn % len(asked)
        self._turn += most
        return sorted((asked + asked)[begin : begin + most])

    def _measure(self, live: Sequence[Text], gauge: Gauge, width: int) -> None:
        """Draft as much for each as makes its share of the pass ``width`` rows: guesses as far as there are any."""
        gauge.tried()
        self._measured = gauge, width
        contexts = [replace(self._about(text), budget=_ASKED) for text in live]
        chains = self._ask(contexts, live) or [EMPTY_DRAFT] * len(live)
        for text, draft in zip(live, chains, strict=True):
            text.draft = _padded(draft, min(width - 1, self._room(text)), text.tokens[-1])

    def _ask(self, contexts: Sequence[Context], live: Sequence[Text]) -> list[Draft] | None:
        """The drafters' best chain for each; None if they fail."""
        begin = self._clock()
        found = self._guarded.ask(lambda drafter: drafter.propose(contexts)) if contexts else None
        if contexts:
            each_ms = (self._clock() - begin) * 1e3 / len(contexts)
            self._each_ms += _FOLLOW * (each_ms - self._each_ms)
        if found is None or self._guarded.drafter is None or len(found) != len(contexts):
            return None
        name = self._guarded.drafter.name
        return [
            tree.best_path(tree.sanitise(draft, self._vocab_size, self._room(text), context.budget, name))
            for draft, context, text in zip(found, contexts, live, strict=True)
        ]

    def _about(self, text: Text) -> Context:
        return Context(id=text.id, tokens=text.tokens, prompt_length=text.prompt_length, budget=0, sampling=_SAMPLING)

    def _room(self, text: Text) -> int:
        """The most tokens worth drafting: the one after them must fit too."""
        return max(0, min(self._most, self._context - len(text.tokens) - 1))

    def _learn(self, found: Sequence[Text | None], scored: Scored | None, pass_ms: float) -> None:
        """Tell controller, gauge and drafter what became of the drafts of the pass just over."""
        shares = [1 + len(text.draft) if text is not None and text.followed else 1 for text in found]
        total = sum(shares)
        whole = scored is not None and scored.count == total  # else vLLM cut a draft, and rows cannot be told apart
        steady = all(text is not None and text.followed for text in found) and (whole or scored is None)
        if self._measured is not None and steady:
            gauge, width = self._measured
            if total == width * len(found):
                gauge.took(width, total, pass_ms)
        begin = 0
        for text, share in zip(found, shares, strict=True):
            if text is not None and text.followed:
                step = self._step(text, total if steady else 0, pass_ms)
                if self._deciding is not None:
                    self._deciding.observe(step)
                if whole and scored is not None:
                    self._show(step, scored, begin)
            begin += share

    def _show(self, step: Step, scored: Scored, begin: int) -> None:
        """Let the drafter learn from a step: it sees the rows of what was kept, as no other is read."""

        def observe(drafter: Drafter) -> None:
            drafter.observe(step, Rows(scored.rows(begin, begin + 1 + len(step.path))))

        self._guarded.ask(observe)

    def _step(self, text: Text, pass_rows: int, pass_ms: float) -> Step:
        accepted = min(len(text.emitted) - 1, len(text.draft))
        return Step(
            sequence=text.id,
            choice=0,
            index=text.passes,
            draft=text.draft,
            path=tuple(range(accepted)),
            tokens=text.emitted,
            sources=(*text.draft.sources[:accepted], TARGET),
            text="",
            rows=1 + len(text.draft),
            pass_rows=pass_rows,
            draft_ms=self._draft_ms,
            score_ms=pass_ms,
        )


def _padded(draft: Draft, count: int, token: int) -> Draft:
    """``draft``, a chain, made ``count`` nodes long: cut, or filled up with ``token``."""
    if len(draft) >= count:
        return tree.prune(draft, range(count))
    more = count - len(draft)
    return tree.chain((*draft.tokens, *(token,) * more), (*draft.confidence, *(0.0,) * more), _PADDING)
