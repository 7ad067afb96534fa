"""Watches the rows behind every emitted token, from the drafter's place: their bits as digests, and the rows that are
not as expected.

Knows steps and rows. Does not know how rows come about or what a difference means.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sooner.protocols import Context, Drafter
from sooner.types import EMPTY_DRAFT, Draft, Logits, Rows, Step

__all__ = ["Watched", "Witness", "digest"]


def digest(row: Logits) -> int:
    """A checksum of all bits of a row of logits (CRC-32)."""
    return zlib.crc32(np.ascontiguousarray(row).data)


@dataclass(slots=True)
class Watched:
    """One text. ``wanted``: the tokens and digests it should have, None where nothing is expected of it.

    ``digests``: of the row of each emitted token. ``differing``: rows that were not as wanted before the tokens part.
    ``first``: position and copy of the first such row. ``parting``: the same of the first token that differs.
    """

    wanted: tuple[Sequence[int], Sequence[int]] | None = None
    digests: list[int] = field(default_factory=list)
    differing: int = 0
    first: tuple[int, Logits] | None = None
    parting: tuple[int, Logits] | None = None

    def see(self, token: int, row: Logits) -> None:
        """One emitted token and the row it was chosen from."""
        at = len(self.digests)
        self.digests.append(digest(row))
        if self.wanted is None or self.parting is not None:
            return
        tokens, digests = self.wanted
        if at < len(digests) and self.digests[at] != digests[at]:
            self.differing += 1
            self.first = self.first or (at, row.copy())
        if at >= len(tokens) or tokens[at] != token:
            self.parting = (at, row.copy())


class Witness:
    """A drafter that drafts what ``inner`` does (None: nothing) and watches the texts it is told to."""

    def __init__(self, inner: Drafter | None) -> None:
        self._inner = inner
        self._texts: dict[int, Watched] = {}

    @property
    def name(self) -> str:
        """The inner drafter's."""
        return self._inner.name if self._inner is not None else "plain"

    def watch(self, sequence: int, text: Watched) -> None:
        """Watch the sequence of this id from its first step on."""
        self._texts[sequence] = text

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """What the inner drafter proposes."""
        return self._inner.propose(contexts) if self._inner is not None else [EMPTY_DRAFT] * len(contexts)

    def observe(self, step: Step, rows: Rows) -> None:
        """Look at the rows of what was emitted, then let the inner drafter learn."""
        text = self._texts.get(step.sequence)
        if text is not None:
            places = (0, *(node + 1 for node in step.path))
            for token, place in zip(step.tokens, places, strict=False):
                text.see(token, rows.logits[place])
        if self._inner is not None:
            self._inner.observe(step, rows)

    def forget(self, id: int) -> None:
        """The inner drafter's; what was watched stays."""
        if self._inner is not None:
            self._inner.forget(id)
