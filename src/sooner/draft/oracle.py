"""The oracle: replays a known answer with errors where asked, so that any acceptance length is had without a model.

Knows the truth, for tests and demos. Does not know the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sooner import tree
from sooner.draft.one_by_one import OneByOne
from sooner.draft.options import at_least, within
from sooner.protocols import Context
from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["OracleDrafter"]

Truth = Sequence[int] | Mapping[tuple[int, ...], Sequence[int]]


class OracleDrafter(OneByOne):
    """Drafts ``truth``: one output for all prompts, or a mapping from prompt to output (others get empty drafts).

    ``max``: most tokens drafted. ``error_at``: the node of every draft that is wrong, so that exactly that many are
    accepted (0: always wrong; None: never). ``rate``: chance that an output position is drafted wrong, fixed by
    ``seed`` and the position alone, so that it does not depend on how tokens fall into steps. A wrong node carries
    ``wrong``, or a neighbouring id where that is the truth or None. The confidence is constant: it gives nothing away.
    """

    name = "oracle"

    def __init__(
        self,
        truth: Truth,
        *,
        max: int = 8,
        error_at: int | None = None,
        rate: float = 0.0,
        wrong: int | None = None,
        confidence: float = 0.9,
        seed: int = 0,
    ) -> None:
        self._truth = truth
        self._max = at_least(1, max=max)
        self._error_at = None if error_at is None else at_least(0, error_at=error_at)
        self._rate = within(0.0, 1.0, rate=rate)
        self._wrong = None if wrong is None else at_least(0, wrong=wrong)
        self._confidence = within(0.0, 1.0, confidence=confidence)
        self._seed = at_least(0, seed=seed)

    def _propose(self, context: Context) -> Draft:
        position = len(context.tokens) - context.prompt_length
        truth = self._output(context)[position : position + max(0, min(self._max, context.budget))]
        tokens = [
            self._mistake(token) if i == self._error_at or self._errs(position + i) else token
            for i, token in enumerate(truth)
        ]
        return tree.chain(tokens, self._confidence, self.name) if tokens else EMPTY_DRAFT

    def _output(self, context: Context) -> Sequence[int]:
        if isinstance(self._truth, Mapping):
            return self._truth.get(tuple(context.tokens[: context.prompt_length]), ())
        return self._truth

    def _errs(self, position: int) -> bool:
        return self._rate > 0 and bool(np.random.default_rng([self._seed, position]).random() < self._rate)

    def _mistake(self, token: int) -> int:
        if self._wrong is not None and self._wrong != token:
            return self._wrong
        return token - 1 if token > 0 else token + 1
