"""Drafting with a foreign vocabulary, by the tokens that both share or by way of the text, whichever is followed more.

Knows both tokenizers. Does not know how a level is drafted (`levels`). Unstable tokenisations,
byte fallbacks and control tokens cost acceptance only: the target verifies its own tokens.
(Timor et al. 2502.05202: token-level intersection, section 4; string-level match, section 3.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sooner.draft.choice import Choice
from sooner.draft.levels import Job, Levels, Processors
from sooner.draft.retokenise import Retokeniser
from sooner.draft.transcript import Transcript
from sooner.draft.vocabulary import Pair, Same
from sooner.protocols import Context
from sooner.types import NO_BANS, Draft, Logits, Sampling, Step

__all__ = ["Shared", "Translated"]


_LONGER = 2.0
"""At most so many of the draft's tokens are drafted for one of the target's."""


class Translated:
    """Speaks to a draft model in its own tokens and answers in the target's.

    ``pairs``: `vocabulary.shared_tokens`. "tokens": the draft's law restricted to shared tokens is q, so that sampled
    drafts stay honest under the ratio rules and share the target's noise under the coupled one. "text": the draft
    writes freely, and its text is read in the target's tokens; deterministic. ``road`` "auto" keeps what works better.
    """

    def __init__(
        self,
        levels: Levels,
        pair: Pair,
        pairs: NDArray[np.int64],
        *,
        width: int,
        road: str = "auto",
    ) -> None:
        self._levels = levels
        self._ours, self._theirs = ours, theirs = pair.ours, pair.theirs
        self._width = width
        both = ("tokens", "text") if (pairs >= 0).any() else ("text",)
        self._choice = Choice(both if road == "auto" else (road,))
        self._shared = Shared(pairs, pair.target.vocab_size)
        self._raw = Same(pair.model.vocab_size, pair.model.vocab_size)
        self._processors = Processors(pair.target.vocab_size, ours.eos_ids)
        self._free = Processors(pair.model.vocab_size, ())
        self._retokeniser = Retokeniser(ours, theirs, pairs)
        self._control = {id: int(pair) for id, pair in enumerate(pairs) if pair >= 0 and not ours.token_bytes(id)}
        self._transcripts: dict[int, Transcript] = {}

    def propose(self, contexts: Sequence[Context], depths: Sequence[int]) -> list[Draft]:
        """A tree per context, all drafted side by side, each by the road that is its turn."""
        roads = [self._choice.pick(context) for context in contexts]
        jobs = [self._job(*asked) for asked in zip(contexts, roads, depths, strict=True)]
        drafts = [
            draft if road == "tokens" else self._retokeniser.read(context, draft)
            for context, road, draft in zip(contexts, roads, self._levels.propose(jobs), strict=True)
        ]
        for context, draft in zip(contexts, drafts, strict=True):
            self._choice.proposed(context, draft)
        return drafts

    def observe(self, step: Step) -> None:
        """Which road was followed further."""
        self._choice.observe(step)

    def forget(self, id: int) -> None:
        """Drop a sequence."""
        self._transcripts.pop(id, None)
        self._processors.forget(id)
        self._free.forget(id)
        self._choice.forget(id)

    def _job(self, context: Context, road: str, depth: int) -> Job:
        transcript = self._transcripts.get(context.id)
        if transcript is None:
            transcript = self._transcripts[context.id] = Transcript(self._ours, self._theirs, self._control)
        known = transcript.read(context.tokens)
        go_on = context.sampling.ignore_eos
        if road == "tokens":
            ends = frozenset() if go_on else self._ours.eos_ids
            processor = self._processors.read(context)
            return Job(context, known, self._shared, processor, depth, self._width, ends)
        noise = None if context.noise is None else self._retokeniser.noise(context)
        freely = replace(context, noise=noise, coins=None, bans=NO_BANS, sampling=_shape(context.sampling))
        ends = frozenset() if go_on else self._theirs.eos_ids
        # As much text as ``depth`` tokens of the target's: where the draft's are shorter, more of them.
        longer = min(max(len(known) / len(context.tokens), 1.0), _LONGER)
        depth = round(depth * longer)
        freely = replace(freely, budget=max(freely.budget, depth))
        return Job(freely, known, self._raw, self._free.read(freely), depth, self._width, ends)


def _shape(sampling: Sampling) -> Sampling:
    """What of ``sampling`` means the same in another vocabulary: the shape of the law, no token's own treatment."""
    return Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        typical_p=sampling.typical_p,
    )


class Shared:
    """The tongue of the intersection: the draft's row where it has the token, nothing elsewhere (`levels.Tongue`)."""

    def __init__(self, pairs: NDArray[np.int64], vocab_size: int) -> None:
        self._ours = np.flatnonzero(pairs >= 0)
        self._theirs = pairs[self._ours]
        self._pairs = pairs
        self._vocab_size = vocab_size

    def row(self, row: Logits) -> Logits:
        """``[V]``."""
        out = np.full(self._vocab_size, -np.inf, np.float32)
        out[self._ours] = row[self._theirs]
        return out

    def ids(self, token: int) -> Sequence[int]:
        """The draft's id of a shared token."""
        return (int(self._pairs[token]),)
