"""What every target refuses of a pass, whatever it runs on, and what is left of a pass that failed.

Knows works and their sessions by contract. Does not know a cache or a model.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from sooner.errors import TargetError, one_line
from sooner.protocols import Target
from sooner.tree import paths
from sooner.types import Rows, Work

__all__ = ["check_works", "score_apart"]

log = logging.getLogger("sooner")


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


def score_apart(target: Target, works: Sequence[Work]) -> list[Rows | Exception]:
    """As ``target.score``, but a work that fails does not take others down with it: where a pass fails and left every
    session as it was, each work is scored by itself (its rows are the same), and what fails again has its error."""
    held = [len(work.session.tokens) for work in works]
    try:
        return [*target.score(works)]
    except Exception as error:  # whatever a back end raises
        if len(works) == 1 or held != [len(work.session.tokens) for work in works]:
            return [error] * len(works)
        log.warning("a pass over %d texts failed (%s): each is scored by itself", len(works), one_line(error))
    # behind the handler, since an error holds on to what the failing pass had allocated
    return [rows for work in works for rows in score_apart(target, [work])]
