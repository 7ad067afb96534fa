"""Models that only count: a unigram and a bigram of the target's own texts, as in the paper's table 3.

Knows token counts. Does not know the target. (Leviathan et al. 2023, section 4.2.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from sooner import tree
from sooner.draft.one_by_one import OneByOne
from sooner.protocols import Context
from sooner.types import Draft, Probabilities

__all__ = ["BIGRAM", "UNIGRAM", "CountDrafter", "Counts"]

UNIGRAM, BIGRAM = "unigram", "bigram"


class Counts:
    """Counts of ``texts`` (token ids): how often each token came, and after which."""

    def __init__(self, texts: Iterable[Sequence[int]], vocab_size: int) -> None:
        single: Counter[int] = Counter()
        after: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for tokens in texts:
            single.update(tokens)
            for last, token in pairwise(tokens):
                after[last][token] += 1
        self._vocab_size = vocab_size
        self._after = {last: self._law(counts) for last, counts in after.items()}
        self._all = self._law(single)

    def law(self, kind: str, last: int) -> tuple[Sequence[int], Probabilities]:
        """Ids, likeliest first, and their probabilities; a bigram falls back to the unigram after an unseen token."""
        return self._all if kind == UNIGRAM else self._after.get(last, self._all)

    def _law(self, counts: Counter[int]) -> tuple[Sequence[int], Probabilities]:
        ranked = counts.most_common() or [(0, 1)]
        weights = np.array([count for _, count in ranked], dtype=np.float64)
        return [token for token, _ in ranked], weights / weights.sum()


class CountDrafter(OneByOne):
    """Chains of the likeliest successors under ``kind``; ``law`` is what the paper would sample them from."""

    def __init__(self, kind: str, counts: Counts) -> None:
        self.name = kind
        self._counts = counts

    def law(self, last: int, temperature: float) -> tuple[Sequence[int], Probabilities]:
        """The draft's distribution q after token ``last``: ids and probabilities, at the target's temperature."""
        ids, q = self._counts.law(self.name, last)
        if temperature == 0.0:
            return ids[:1], np.ones(1)
        sharpened = q ** (1.0 / temperature)
        return ids, sharpened / sharpened.sum()

    def _propose(self, context: Context) -> Draft:
        last, chain = context.tokens[-1], []
        for _ in range(context.budget):
            last = self._counts.law(self.name, last)[0][0]
            chain.append(last)
        return tree.chain(chain, 0.5, self.name)
