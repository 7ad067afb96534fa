"""A hostile drafter: random tokens, random trees, or plain garbage. Nothing it does may change a text.

Knows a seed. Does not know anything useful.
"""

from __future__ import annotations

import math
import random
from typing import Any, cast

from sooner import tree
from sooner.draft.one_by_one import OneByOne
from sooner.draft.options import at_least
from sooner.protocols import Context
from sooner.types import ROOT, Draft

__all__ = ["RandomDrafter"]


class RandomDrafter(OneByOne):
    """Drafts drawn from ids 0 to ``vocab_size - 1``, fixed by ``seed``, the sequence and its length.

    ``max``: most nodes; ``tree``: random trees instead of chains; ``malicious``: what no drafter may return (illegal
    ids, parents out of order, NaN confidences, forged sources, false q rows, drafts beyond any budget, no draft at
    all), for tests of what the engine makes of it.
    """

    name = "random"

    def __init__(
        self, *, vocab_size: int = 256, max: int = 8, tree: bool = False, malicious: bool = False, seed: int = 0
    ) -> None:
        self._vocab_size = at_least(1, vocab_size=vocab_size)
        self._max = at_least(1, max=max)
        self._tree = tree
        self._malicious = malicious
        self._seed = at_least(0, seed=seed)

    def _propose(self, context: Context) -> Draft:
        chance = random.Random(f"{self._seed}/{context.id}/{len(context.tokens)}")
        if self._malicious:
            # The type is the lie: a strange drafter's return value is what sanitise must cope with.
            return cast(Draft, _garbage(chance, self._vocab_size))
        n = max(0, min(self._max, context.budget))
        tokens = [chance.randrange(self._vocab_size) for _ in range(n)]
        if not self._tree:
            return tree.chain(tokens, 0.5, self.name)
        parents = [chance.randrange(ROOT, i) for i in range(n)]
        wild = Draft(tuple(tokens), tuple(parents), (0.5,) * n, (self.name,) * n)
        return tree.sanitise(wild, self._vocab_size, depth=n)


def _garbage(chance: random.Random, vocab_size: int) -> Any:
    n = chance.choice((1, 3, 8, 5000))
    oddities: tuple[Any, ...] = (-7, vocab_size, 2**40, 1.5, math.nan, None, "id", [0], True)

    def mixed(low: int, high: int) -> list[Any]:
        return [chance.choice(oddities) if chance.random() < 0.2 else chance.randrange(low, high) for _ in range(n)]

    draft: Any = Draft(
        cast(Any, mixed(0, vocab_size)),
        cast(Any, mixed(ROOT, n)),
        cast(Any, [chance.choice((math.nan, math.inf, -1.0, "sure", None, 0.5)) for _ in range(n)]),
        cast(Any, [chance.choice(("target", "", 7, None, "random")) for _ in range(chance.randrange(n + 1))]),
        cast(Any, {ROOT: [math.nan] * vocab_size, 0: [1.0], "x": None}),
    )
    return chance.choice((draft, draft, draft, None, [], "draft", object(), 3))
