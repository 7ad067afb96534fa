"""Toy engines that can be opened in another process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from commandline import Joined
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.targets.toy import ToyTarget
from sooner.types import Rows, Work
from toy import ToyCodec, TreeDrafter, V

PASS_S = 0.02


class SlowTarget(ToyTarget):
    """A toy whose passes take as long as a small model's."""

    def score(self, works: Sequence[Work]) -> list[Rows]:
        time.sleep(PASS_S)
        return super().score(works)


def open_toy(*, slow: bool = False, **options: object) -> Engine:
    """An engine named toy, with a drafter that is often wrong."""
    target = SlowTarget(V, context=1 << 16) if slow else ToyTarget(V)
    return Engine(
        target,
        ToyCodec(),
        name="toy",
        drafter=TreeDrafter(0),
        controller=FixedController(6),
        template=Joined(),
        **options,  # type: ignore[arg-type]  # the engine's own
    )


def load_slow(model: str | None, **options: object) -> Engine:
    """What `sooner.cli.main` takes in the place of `sooner.load`."""
    return open_toy(slow=True)
