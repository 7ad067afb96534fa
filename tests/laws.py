"""What tests need of exact laws beside `sooner.audit.exact`: without its shortcut, and the bounds of acceptance.

Knows how to bound acceptance. Does not know any rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import combinations

from sooner.audit.exact import (
    Drafting,
    EnumeratingCoins,
    Laws,
    Model,
    Shape,
    Tokens,
    ToyLaw,
    chain_shape,
    chained_steps,
    emit,
    enumerate_law,
    random_model,
    sampler,
    step,
    total_variation,
)
from sooner.protocols import Coins, Verifier
from sooner.types import ROOT, Probabilities

__all__ = [
    "Drafting",
    "EnumeratingCoins",
    "Laws",
    "Model",
    "Shape",
    "Tokens",
    "ToyLaw",
    "candidate_law",
    "chain_shape",
    "chained_steps",
    "emit",
    "enumerate_law",
    "expected_accepted",
    "maximum_acceptance",
    "random_model",
    "sampler",
    "step",
    "total_variation",
    "two_steps",
]


def two_steps(verifier: Verifier, model: Model, drafting: Drafting, context: Tokens = ()) -> dict[Tokens, float]:
    """The exact law of what two consecutive steps emit, drafts, coins and all."""

    def play(coins: Coins) -> Tokens:
        first = step(verifier, model, drafting, context, coins)
        return first + step(verifier, model, drafting, context + first, coins)

    return enumerate_law(play)


def expected_accepted(verifier: Verifier, model: Model, drafting: Drafting, context: Tokens = ()) -> float:
    """The exact mean number of accepted drafted tokens in one step."""
    law = enumerate_law(partial(step, verifier, model, drafting, context))
    return sum(chance * (len(text) - 1) for text, chance in law.items())


def candidate_law(drafting: Drafting, context: Tokens = ()) -> dict[frozenset[int], float]:
    """The exact law of the set of first-level tokens of a draft."""

    def play(coins: Coins) -> frozenset[int]:
        draft = drafting(context, coins)
        return frozenset(draft.tokens[node] for node in draft.children(ROOT))

    return enumerate_law(play)


def maximum_acceptance(p: Probabilities, candidates: Mapping[frozenset[int], float]) -> float:
    """The largest chance of any lossless rule to accept one of the drafted candidates.

    ``min over token sets H of p(H) + 1 - Pr(all candidates in H)``: the min cut of the transport problem between the
    draft's and the target's law (Sun et al. 2310.15141; Khisti et al. 2410.18234).
    """
    tokens = range(len(p))
    sets = (set(h) for size in range(len(p) + 1) for h in combinations(tokens, size))
    return min(
        sum(float(p[i]) for i in h) + 1.0 - sum(chance for drawn, chance in candidates.items() if drawn <= h)
        for h in sets
    )
