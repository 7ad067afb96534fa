"""What every target refuses of a pass, whatever it runs on.

Knows works and their sessions by contract. Does not know a cache or a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sooner.errors import TargetError
from sooner.tree import paths
from sooner.types import Work

__all__ = ["check_works"]


class Held(Protocol):
    """A session that can say whether it was closed."""

    @property
    def closed(self) -> bool:
        """Whether its cache is gone."""
        ...

    @property
    def tokens(self) -> Sequence[int]:
        """What its cache holds."""
        ...


def check_works(works: Sequence[Work], sessions: Sequence[Held], context: int) -> None:
    """Raise `TargetError` for works of one pass that share a session, feed nothing to one or more than ``context``."""
    if len(set(map(id, sessions))) < len(sessions):
        raise TargetError("two works of one pass share a session: score one after the other")
    for work, session in zip(works, sessions, strict=True):
        if session.closed:
            raise TargetError("a work's session is closed: open a new one")
        if not work.tokens:
            raise TargetError("a work feeds no token: give at least the draft's root")
        end = len(session.tokens) + len(work.tokens)
        if end + len(work.draft) > context and end + max(map(len, paths(work.draft))) > context:
            raise TargetError(f"a work reaches past the context of {context} tokens: cut its draft")
