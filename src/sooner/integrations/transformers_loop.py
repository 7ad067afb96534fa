"""The decoding of one `generate` call: a step drafts, scores in one pass, and keeps what `generate` itself would write.

Knows the order of things within a step, and `generate`'s own rules: processors, draw, criteria and streamer are called
once per token, for the whole batch, with the ids that came before, exactly as without a draft. Does not know drafters.

All texts of a batch keep equally many tokens of a step, the fewest that any agrees with: processors and criteria are
given whole batches of one length, and so is the model's cache. The draw takes torch's generator one position after
another, so that a seed gives the text that it gives without drafts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from sooner.integrations.transformers_port import Passes, pad_id

__all__ = ["Guesses", "Run"]


class Guesses(Protocol):
    """Where drafts come from."""

    def draft(self, ids: Any, padded: Sequence[int | None], room: int) -> Any:
        """``[B, n]`` tokens after ``ids`` ``[B, L]``, at most ``room``. ``padded``: the token that an ended text is
        filled with, None for one that goes on."""
        ...

    def scored(self, logits: Any, ids: Any, kept: int, score_ms: float, verify_ms: float) -> None:
        """The pass over the draft gave ``logits`` ``[B, 1 + n, V]``; the last ``kept`` of ``ids`` follow from it."""
        ...


class Run:
    """One call: what `generate` prepared, and the texts so far. The result is `generate`'s own."""

    def __init__(
        self, passes: Passes, ids: Any, config: Any, *, processors: Any, criteria: Any, streamer: Any = None
    ) -> None:
        self.passes = passes
        self.ids = ids
        self.config = config
        self._processors = processors
        self._criteria = criteria
        self._streamer = streamer
        ends = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._pad = pad_id(config) if ends else None
        self._open = torch.ones(ids.shape[0], dtype=torch.long, device=ids.device)
        dictionary = config.return_dict_in_generate
        self.scores: tuple[Any, ...] | None = () if dictionary and config.output_scores else None
        self.logits: tuple[Any, ...] | None = () if dictionary and config.output_logits else None

    @property
    def finished(self) -> bool:
        """Whether every text has ended."""
        return not bool(self._open.any())

    def decode(self, guesses: Guesses) -> None:
        """All steps, the prompt's among them."""
        begin = time.perf_counter()
        draft = self.ids[:, :0]
        logits = self.passes.first(self.ids)
        while True:
            scored = time.perf_counter()
            kept = self._accept(logits, draft)
            self.passes.keep(kept)
            done = time.perf_counter()
            guesses.scored(logits, self.ids, kept, (scored - begin) * 1e3, (done - scored) * 1e3)
            if self.finished:
                break
            draft = guesses.draft(self.ids, self._padded(), self.config.max_length - self.ids.shape[1] - 1)
            begin = time.perf_counter()
            logits = self.passes.next(self.ids, draft)
        if self._streamer is not None:
            self._streamer.end()

    def _accept(self, logits: Any, draft: Any) -> int:
        """Write tokens as long as all texts go on as drafted, and one more; returns how many."""
        for at in range(logits.shape[1]):
            token = self._commit(logits[:, at])
            if self.finished or at == draft.shape[1] or not torch.equal(token, draft[:, at]):
                return at + 1
        raise AssertionError("a pass has a row for each token of its draft and one more")

    def _commit(self, row: Any) -> Any:
        """One token of every text ``[B]``, from the model's ``row`` ``[B, V]``."""
        raw = row.to(copy=True, dtype=torch.float32, device=self.ids.device)
        scores = self._processors(self.ids, raw)
        if self.scores is not None:
            self.scores += (scores,)
        if self.logits is not None:
            self.logits += (raw,)
        if self.config.do_sample:
            chances = torch.nn.functional.softmax(scores, dim=-1)
            token = torch.multinomial(chances, num_samples=1).squeeze(1)
        else:
            token = torch.argmax(scores, dim=-1)
        if self._pad is not None:
            token = token * self._open + self._pad * (1 - self._open)
        self.ids = torch.cat([self.ids, token[:, None]], dim=-1)
        if self._streamer is not None:
            self._streamer.put(token.cpu())
        self._open = self._open & ~self._criteria(self.ids, self.scores)
        return token

    def _padded(self) -> list[int | None]:
        """The token that each text is filled with; None where it goes on."""
        if self._pad is None:
            return [None] * len(self._open)
        return [None if open_ else self._pad for open_ in self._open.tolist()]
