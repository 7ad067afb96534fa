"""A toy target of six layers that can be shortened: every layer that is left out moves the rows a little."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from sooner.errors import DraftError
from sooner.targets.toy import ToySession, ToyTarget
from sooner.types import Logits
from toy import V

LAYERS = 6
NAMES = tuple(f"{layer}{half}" for layer in range(LAYERS) for half in "am")


class ShortToy(ToyTarget):
    """The toy without ``names``, each of which moves the rows by ``damage``. Lends while it is told to."""

    def __init__(self, names: Collection[str], damage: float, **options: Any) -> None:
        super().__init__(V, **options)
        self.names: Collection[str] = NAMES
        self.left_out = names
        self.damage = damage
        self.lending = True
        self.released = 0
        self.passes = 0
        self.memory = 3 << 20

    def open(self, tokens: Sequence[int] = (), salt: str = "") -> ToySession:
        session = super().open((), salt)
        session.tokens = list(tokens)
        return session

    def leave_out(self, names: Collection[str]) -> None:
        self.left_out = names
        self._rows.clear()

    def lends(self, tokens: Sequence[int]) -> bool:
        return self.lending

    def release(self) -> None:
        self.released += 1

    def score(self, works: Any) -> Any:
        self.passes += 1
        return super().score(works)

    def _make_row(self, context: tuple[int, ...]) -> Logits:
        moved = super()._make_row(context)
        for name in sorted(self.left_out):
            rng = np.random.default_rng([77, int(name[:-1]), *context])
            moved = moved + rng.normal(size=V).astype(np.float32) * np.float32(self.damage)
        return moved


class SkippableToy(ToyTarget):
    """A toy that hands out shortened copies of itself."""

    short: ShortToy
    damage = 0.4

    def skipping(self, names: Collection[str]) -> ShortToy:
        if not set(names) <= set(NAMES):
            raise DraftError("the toy has no such sublayer")
        self.short = ShortToy(names, self.damage, context=self.context)
        return self.short

    def gated(self) -> ShortToy:
        return self.skipping(())
