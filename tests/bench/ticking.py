"""A toy target whose passes take as long as it says, and the clock that shows it."""

from __future__ import annotations

from collections.abc import Sequence

from commandline import Joined
from sooner.bench.configuration import PLAIN, parse_configuration
from sooner.bench.runner import Runner
from sooner.bench.workload import Item
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.targets.toy import ToyTarget
from sooner.types import Rows, Sampling, Work
from toy import ToyCodec, V

LETTERS = "abcdefgh"


class TickingTarget(ToyTarget):
    """A pass of r rows takes ``1 + row * (r - 1)`` seconds; the fifth part of prompts' chunks."""

    def __init__(self, row: float = 0.05, **options: float) -> None:
        super().__init__(V, **options)  # type: ignore[arg-type]  # seed, sharpness, row_dependent
        self._price = row
        self.now = 0.0

    def score(self, works: Sequence[Work]) -> list[Rows]:
        rows = sum(1 + len(work.draft) for work in works)
        self.now += 1.0 + self._price * (rows - 1)
        return super().score(works)


def items(count: int, category: str = "toy") -> list[Item]:
    """Different prompts of the toy's letters."""
    return [Item(str(i), category, LETTERS[i % 8] + LETTERS[i * 3 % 7] + LETTERS[i // 8]) for i in range(count)]


def runner(target: TickingTarget, *names: str, max_tokens: int = 120) -> Runner:
    """Plain decoding and the configurations ``names`` on ``target``, by its own clock."""
    engine = Engine(target, ToyCodec(), template=Joined(), controller=FixedController(8), name="toy")
    chosen = [PLAIN, *map(parse_configuration, names)]
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    return Runner(engine, chosen, sampling, clock=lambda: target.now)
