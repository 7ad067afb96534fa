"""Two traces side by side: where their texts part, what was asked differently, and which steps stand there.

Knows step records and pieces. Does not know files' names or how anything is shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from sooner.errors import InvalidRequest
from sooner.trace.pieces import Pieces
from sooner.trace.reader import Trace

__all__ = ["Difference", "Setting", "Side", "compare", "compare_choice", "settings"]

_BEFORE = 32
"""Tokens of context before the first differing one."""
_AFTER = 12
_STEPS = 6

_IDLE = frozenset({"type", "time", "seed", "prompt_tokens", "cost", "sampling", "fingerprint", "id", "lossless"})
"""Header fields that are no setting, or are told apart (`settings`)."""

Record = Mapping[str, Any]
Setting = tuple[str, Any, Any]
"""A name, and the two values."""


@dataclass(frozen=True, slots=True)
class Side:
    """One trace where two part: its ``tokens`` from the first differing one on (none if its text had ended, or if the
    texts are the same), how it ended if that was seen, and ``count`` tokens read until then.

    ``steps``: those up to the difference, or the first ones if there is none, each with the output position of its
    first token.
    """

    tokens: tuple[int, ...]
    finish: Mapping[str, Any] | None
    count: int
    steps: tuple[tuple[int, Record], ...]
    pieces: Pieces

    def read(self, tokens: Iterable[int]) -> str:
        """The text of ``tokens`` as this trace tells it."""
        return b"".join(map(self.pieces.token_bytes, tokens)).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Difference:
    """``position``: the first output position at which the tokens differ, None if there is none. ``before``: the tokens
    before it that both have."""

    choice: int
    position: int | None
    before: tuple[int, ...]
    a: Side
    b: Side

    def to_dict(self) -> dict[str, Any]:
        """The object of ``sooner trace diff --json``, without settings."""
        sides = {
            name: {"tokens": list(s.tokens), "text": s.read(s.tokens), "count": s.count, "finish": s.finish}
            for name, s in (("a", self.a), ("b", self.b))
        }
        return {"same": self.same, "choice": self.choice, "position": self.position, **sides}

    @property
    def same(self) -> bool:
        """Whether the texts are the same and ended for the same reason, as far as both traces go to their end."""
        return self.position is None and self.a.finish == self.b.finish


class _Stream:
    """The tokens of one choice of a trace, one at a time; keeps its first and its latest steps."""

    def __init__(self, trace: Trace, choice: int) -> None:
        self._records = (record for record in trace if record["choice"] == choice)
        self.pieces = trace.pieces
        self.count = 0
        self.finish: Mapping[str, Any] | None = None
        self.first: list[tuple[int, Record]] = []
        self.latest: deque[tuple[int, Record]] = deque(maxlen=_STEPS)

    def __iter__(self) -> Iterator[int]:
        for record in self._records:
            self.finish = record.get("finish") or self.finish
            self.latest.append((self.count, record))
            if len(self.first) < _STEPS:
                self.first.append((self.count, record))
            for token in record["tokens"]:
                self.count += 1
                yield token

    def side(self, tokens: Iterable[int], steps: Iterable[tuple[int, Record]]) -> Side:
        """What is to be said of this trace."""
        return Side(tuple(tokens), self.finish, self.count, tuple(steps), self.pieces)


def compare(a: str | Path, b: str | Path, choices: int = 1) -> Difference:
    """The first of ``choices`` answers that differs, else the first of all. Raises as `compare_choice`."""
    first: Difference | None = None
    for choice in range(max(1, choices)):
        found = compare_choice(a, b, choice)
        if not found.same:
            return found
        first = first or found
    assert first is not None
    return first


def compare_choice(a: str | Path, b: str | Path, choice: int = 0) -> Difference:
    """Read both traces until their answers number ``choice`` part. Raises `InvalidRequest` for what is no trace."""
    with Trace(a) as one, Trace(b) as other:
        streams = _Stream(one, choice), _Stream(other, choice)
        tokens = iter(streams[0]), iter(streams[1])
        before: deque[int] = deque(maxlen=_BEFORE)
        for position, pair in enumerate(zip_longest(*tokens)):
            if pair[0] != pair[1]:
                ours, theirs = (_parted(*found) for found in zip(streams, tokens, pair, strict=True))
                return Difference(choice, position, tuple(before), ours, theirs)
            before.append(pair[0])
        ours, theirs = (stream.side((), stream.first) for stream in streams)
        return Difference(choice, None, tuple(before), ours, theirs)


def _parted(stream: _Stream, rest: Iterator[int], token: int | None) -> Side:
    """The side of a trace whose next token is ``token``, None at its end."""
    count, steps = stream.count, tuple(stream.latest)
    if token is None:
        return stream.side((), steps)
    tokens = (token, *islice(rest, _AFTER - 1))
    return Side(tokens, None, count, steps, stream.pieces)


def settings(a: Record, b: Record) -> list[Setting]:
    """What two headers ask or stand on differently, by name; the seed only where tokens are drawn."""
    found = [(name, a.get(name), b.get(name)) for name in {**a, **b} if name not in _IDLE]
    for part in ("fingerprint", "sampling"):
        ours, theirs = (header.get(part) or {} for header in (a, b))
        if not (isinstance(ours, Mapping) and isinstance(theirs, Mapping)):
            raise InvalidRequest(f"a header has no {part}: record the trace again")
        found += [(name, ours.get(name), theirs.get(name)) for name in {**ours, **theirs} if name != "seed"]
    if ours.get("temperature") or theirs.get("temperature"):
        found.append(("seed", a.get("seed"), b.get("seed")))
    return [setting for setting in found if setting[1] != setting[2]]
