"""A drafter inside somebody else's engine: asked until it fails, and then never again, so that texts go on without it.

Knows one drafter and that it may raise. Does not know what it is asked, or by which engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from sooner.protocols import Drafter

__all__ = ["Guarded"]

T = TypeVar("T")

log = logging.getLogger("sooner")


class Guarded:
    """``drafter`` is None once it has failed, which is logged; ``failed`` is told."""

    def __init__(self, drafter: Drafter | None, failed: Callable[[Exception], None] = lambda error: None) -> None:
        self.drafter = drafter
        self._failed = failed

    def ask(self, question: Callable[[Drafter], T]) -> T | None:
        """What the drafter answers; None if it raises, or did before."""
        drafter = self.drafter
        if drafter is None:
            return None
        try:
            return question(drafter)
        except Exception as error:
            self.drafter = None
            log.warning("drafter %s failed and is off: %s: %s", drafter.name, type(error).__name__, error)
            self._failed(error)
            return None

    def forget(self, id: int) -> None:
        """The sequence ``id`` is over."""
        self.ask(lambda drafter: drafter.forget(id))
