"""A toy engine for laws: a Markov target, a byte codec that splits characters, and scripted drafters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sooner import tree
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.protocols import Context, Drafter
from sooner.targets.toy import ToyTarget
from sooner.text import Detokenizer
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Rows, Step

PIECES: tuple[bytes, ...] = (
    b"",  # end of text
    *(bytes([c]) for c in b"abcdefgh .\n"),
    *(bytes([b]) for b in "é안😀".encode()),
    b"stop",
    b"to",
    b"p!",
    "한국".encode(),
)
V = len(PIECES)


def token_bytes(token: int) -> bytes:
    return PIECES[token] if 0 <= token < V else b""


class ToyCodec:
    eos_ids = frozenset({0})
    special_ids = frozenset({0})
    vocab_size = V

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        return [PIECES.index(bytes([b])) for b in text.encode() if bytes([b]) in PIECES]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        return token_bytes(id)

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(token_bytes)


class TreeDrafter:
    """Random trees over the vocabulary, right with probability ``hit`` where the truth is given."""

    name = "tree"

    def __init__(
        self,
        seed: int = 0,
        truth: Mapping[tuple[int, ...], Sequence[int]] | None = None,
        hit: float = 0.7,
        vocab_size: int = V,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._truth = truth or {}
        self._hit = hit
        self._vocab_size = vocab_size

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        return [self._propose(context) for context in contexts]

    def observe(self, step: Step, rows: Rows) -> None: ...

    def forget(self, id: int) -> None: ...

    def _propose(self, context: Context) -> Draft:
        n = int(self._rng.integers(0, context.budget + 1))
        parents = [int(self._rng.integers(-1, i)) for i in range(n)]
        truth = self._truth.get(tuple(context.tokens[: context.prompt_length]), ())
        tokens: list[int] = []
        depths: list[int] = []
        for i in range(n):
            depths.append(0 if parents[i] == ROOT else depths[parents[i]] + 1)
            at = len(context.tokens) - context.prompt_length + depths[i]
            right = at < len(truth) and self._rng.random() < self._hit
            tokens.append(int(truth[at]) if right else int(self._rng.integers(0, self._vocab_size)))
        return tree.sanitise(Draft(tuple(tokens), tuple(parents), (0.5,) * n, ("tree",) * n), self._vocab_size, 64)


class FlickerController(FixedController):
    """Budgets that change at random from step to step, zero included."""

    def __init__(self, budget: int, seed: int = 0) -> None:
        super().__init__(budget)
        self._rng = np.random.default_rng(seed)

    def budgets(self, contexts: Sequence[Context]) -> list[int]:
        return [int(self._rng.integers(0, self.budget + 1)) for _ in contexts]


def toy_engine(drafter: Drafter | None = None, *, budget: int = 6, flicker: bool = False, **options: Any) -> Engine:
    target = ToyTarget(
        V,
        **{k: options.pop(k) for k in ("seed", "context", "pool_tokens", "row_dependent", "sharpness") if k in options},
    )
    controller = FlickerController(budget) if flicker else FixedController(budget)
    return Engine(target, ToyCodec(), drafter=drafter, controller=controller, **options)


__all__ = ["EMPTY_DRAFT", "PIECES", "FlickerController", "ToyCodec", "TreeDrafter", "V", "toy_engine"]
