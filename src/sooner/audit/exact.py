"""Exact laws of verification: every outcome of every coin, with its probability, on toy models.

Knows how to enumerate coins and to compare joint laws. Does not know any rule, nor what is concluded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from sooner.protocols import Coins, Law, Verifier
from sooner.types import ROOT, Draft, Probabilities, Verdict

__all__ = [
    "Drafting",
    "EnumeratingCoins",
    "Laws",
    "Model",
    "Shape",
    "Tokens",
    "ToyLaw",
    "chain_shape",
    "chained_steps",
    "emit",
    "enumerate_law",
    "random_model",
    "sampler",
    "step",
    "total_variation",
]

Outcome = TypeVar("Outcome", bound=Hashable)
Tokens = tuple[int, ...]
Model = Callable[[Tokens], Probabilities]
"""A toy language model: the law of the next token after a context."""


class EnumeratingCoins:
    """Coins that follow a script of choices, then always take the first open one, and note what else was open."""

    def __init__(self, script: list[int]) -> None:
        self._script = script
        self.probability = 1.0
        self.widths: list[int] = []
        self.choices: list[int] = []

    def accept(self, numerator: float, denominator: float = 1.0) -> bool:
        """See `protocols.Coins`."""
        assert numerator >= 0
        assert denominator >= 0
        sure = denominator <= numerator and numerator > 0
        chance = 1.0 if sure else numerator / denominator if numerator > 0 else 0.0
        return self._choose({True: chance, False: 1.0 - chance})

    def draw(self, weights: Probabilities) -> int:
        """See `protocols.Coins`."""
        assert (weights >= 0).all()
        total = weights.sum()
        assert total > 0
        return self._choose({i: float(w / total) for i, w in enumerate(weights)})

    def _choose(self, options: Mapping[Outcome, float]) -> Outcome:
        open_ = [(value, chance) for value, chance in options.items() if chance > 0]
        at = len(self.choices)
        pick = self._script[at] if at < len(self._script) else 0
        self.widths.append(len(open_))
        self.choices.append(pick)
        value, chance = open_[pick]
        self.probability *= chance
        return value


def enumerate_law(play: Callable[[Coins], Outcome]) -> dict[Outcome, float]:
    """The exact distribution of what ``play`` returns, over all outcomes of its coins."""
    law: dict[Outcome, float] = defaultdict(float)
    script: list[int] | None = []
    while script is not None:
        coins = EnumeratingCoins(script)
        law[play(coins)] += coins.probability
        script = _next_script(coins)
    return dict(law)


def _next_script(coins: EnumeratingCoins) -> list[int] | None:
    choices, widths = coins.choices, coins.widths
    while choices and choices[-1] + 1 == widths[len(choices) - 1]:
        choices.pop()
    return [*choices[:-1], choices[-1] + 1] if choices else None


@dataclass(frozen=True)
class ToyLaw:
    """A row of a toy model. ``token`` is its own draw where a test fixes one."""

    p: Probabilities
    token: int | None = None

    def draw(self) -> int:
        """The token that was fixed: a rule whose law is enumerated must draw by its coins."""
        assert self.token is not None, "this rule must draw by its coins"
        return self.token


@dataclass
class Laws:
    """The rows of a draft below ``context``, computed on demand; ``asked`` lists the nodes in order."""

    model: Model
    context: Tokens
    draft: Draft
    asked: list[int] = field(default_factory=list)

    def __call__(self, node: int) -> Law:
        """The row below ``node``."""
        self.asked.append(node)
        return ToyLaw(self.model(self.context + tuple(self.draft.tokens[i] for i in self.draft.path(node))))


def random_model(seed: int, vocab_size: int, *, sparse: float = 0.0) -> Model:
    """A context-dependent model; each entry is zero with probability ``sparse`` (never a whole row)."""
    rows: dict[Tokens, Probabilities] = {}

    def model(context: Tokens) -> Probabilities:
        if context not in rows:
            rng = np.random.default_rng([seed, len(context), *context])
            row = rng.gamma(0.7, size=vocab_size) + 1e-3
            drop = rng.random(vocab_size) < sparse
            drop[rng.integers(vocab_size)] = False
            row[drop] = 0.0
            rows[context] = row / row.sum()
        return rows[context]

    return model


Shape = tuple["Shape", ...]
"""A tree without tokens: one entry per child. ``((), ((),))`` has two first-level nodes, the second with a child."""

Drafting = Callable[[Tokens, Coins], Draft]
"""How a draft is made below a context."""


def chain_shape(depth: int) -> Shape:
    """A chain of ``depth`` nodes."""
    return (chain_shape(depth - 1),) if depth else ()


def sampler(q: Model, shape: Shape, *, deterministic: Callable[[Tokens], bool] = lambda context: False) -> Drafting:
    """Drafts of one shape, drawn from ``q`` without replacement; likeliest tokens below ``deterministic`` contexts."""

    def draw(context: Tokens, coins: Coins) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        rows: dict[int, Probabilities] = {}

        def grow(parent: int, context: Tokens, shape: Shape) -> None:
            row = q(context)
            fixed = deterministic(context)
            weights = row.copy()
            below: list[tuple[int, Tokens, Shape]] = []
            for child in shape:
                if weights.sum() <= 0:
                    break
                token = int(weights.argmax()) if fixed else coins.draw(weights)
                weights[token] = 0.0
                below.append((len(tokens), (*context, token), child))
                tokens.append(token)
                parents.append(parent)
            if below and not fixed:
                rows[parent] = row
            for node, path, child in below:
                grow(node, path, child)

        grow(ROOT, context, shape)
        n = len(tokens)
        return Draft(tuple(tokens), tuple(parents), (0.5,) * n, ("toy",) * n, rows)

    return draw


def emit(draft: Draft, verdict: Verdict) -> Tokens:
    """What a step gives out: the accepted nodes' tokens and the target's own."""
    return (*(draft.tokens[node] for node in verdict.path), verdict.token)


def step(verifier: Verifier, model: Model, drafting: Drafting, context: Tokens, coins: Coins) -> Tokens:
    """One step of speculative decoding; returns the emitted tokens."""
    draft = drafting(context, coins)
    return emit(draft, verifier.verify(draft, Laws(model, context, draft), coins))


def chained_steps(
    verifier: Verifier, model: Model, drafting: Drafting, context: Tokens = (), steps: int = 2
) -> dict[Tokens, float]:
    """The exact law of what ``steps`` consecutive steps emit, drafts, coins and all.

    Equal texts after a step share their continuation: exact for memoryless parts.
    """
    law: dict[Tokens, float] = {(): 1.0}
    for _ in range(steps):
        longer: dict[Tokens, float] = defaultdict(float)
        for text, chance in law.items():
            below = enumerate_law(partial(step, verifier, model, drafting, context + text))
            for more, part in below.items():
                longer[text + more] += chance * part
        law = dict(longer)
    return law


def total_variation(law: Mapping[Tokens, float], model: Model, vocab_size: int, context: Tokens = ()) -> float:
    """Between ``law``, its shorter texts continued by ``model``, and ``model``'s own law of texts that long."""
    length = max(map(len, law))
    joint: dict[Tokens, float] = defaultdict(float)
    for text, chance in law.items():
        for rest, part in _continuations(model, context + text, length - len(text), vocab_size):
            joint[text + rest] += chance * part
    exact = dict(_continuations(model, context, length, vocab_size))
    return sum(abs(joint.get(t, 0.0) - exact.get(t, 0.0)) for t in joint.keys() | exact.keys()) / 2


def _continuations(model: Model, context: Tokens, length: int, vocab_size: int) -> Iterator[tuple[Tokens, float]]:
    if length == 0:
        yield (), 1.0
        return
    row = model(context)
    for token in range(vocab_size):
        if row[token] > 0:
            for rest, part in _continuations(model, (*context, token), length - 1, vocab_size):
                yield (token, *rest), float(row[token]) * part
