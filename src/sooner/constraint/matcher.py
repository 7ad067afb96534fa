"""One text's place in a compiled grammar, walked along drafts and back.

Knows llguidance's matcher, which knows no tree and cannot leave an error. Does not know how grammars are compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sooner.errors import InvalidRequest
from sooner.text import TextCodec

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["PARAMS", "CompiledConstraint", "GrammarMatcher", "Ids"]

Ids = NDArray[np.uint64]

PARAMS = {"json_object": "response_format", "json_schema": "response_format", "regex": "regex", "grammar": "grammar"}
"""The request parameter that each kind of constraint is given by."""


class CompiledConstraint:
    """A compiled grammar (`protocols.Constraint`); made by `compile_constraint`."""

    def __init__(self, kind: str, source: str, matcher: LLMatcher, codec: TextCodec) -> None:
        self.kind = kind
        self.source = source
        self._matcher = matcher
        self._codec = codec

    def open(self) -> GrammarMatcher:
        """A matcher at the beginning of a text."""
        return GrammarMatcher(self._matcher, self.kind, self._codec)


class GrammarMatcher:
    """One text's place in a grammar (`protocols.Matcher`): a cursor that walks along drafts and always comes back.

    The library's own matcher knows no tree: it is moved from path to path by rolling back to their common prefix. It
    cannot leave an error (its bounds on the work of one row are the usual one), so it is then made anew.
    """

    def __init__(self, start: LLMatcher, kind: str, codec: TextCodec) -> None:
        self._start = start
        self._kind = kind
        self._eos = codec.eos_ids
        self._ends: Ids = np.array(sorted(codec.eos_ids), dtype=np.uint64)
        self._size = codec.vocab_size
        self._live = start.deep_copy()
        self._tokens: list[int] = []
        self._path: tuple[int, ...] = ()
        self._over = False
        self._known: dict[tuple[int, ...], Ids] = {}

    @property
    def ended(self) -> bool:
        """Whether nothing but the end of the text is allowed next."""
        ids = self.allowed()
        return len(ids) <= len(self._ends) and set(ids.tolist()) <= self._eos

    def push(self, token: int) -> None:
        """Advance by one emitted token. Raises `InvalidRequest` if the grammar forbids it."""
        if self._over or token in self._eos:
            self._over, self._known = True, {}
            return
        if not self._move((token,)):
            if self._live.is_error():
                raise self._stuck()
            raise InvalidRequest(
                f"the text left its {self._kind}: token {token} is not allowed there", PARAMS.get(self._kind)
            )
        self._tokens.append(token)
        self._path = ()
        self._known = {path[1:]: ids for path, ids in self._known.items() if path[:1] == (token,)}

    def allowed(self, path: Sequence[int] = ()) -> Ids:
        """The ids that may come next, ascending."""
        key = tuple(path)
        ids = self._known.get(key)
        if ids is None:
            ids = self._mask(key)
            if ids is None and not key:
                raise self._stuck()
            if ids is None:  # no row below a forbidden token is ever emitted; any law will do
                return self._ends
            self._known[key] = ids
        return ids

    def permits(self, token: int, path: Sequence[int] = ()) -> bool:
        """Whether ``token`` may come next."""
        if not self._move(tuple(path)):
            return False
        if token in self._eos:
            return bool(self._live.is_accepting())
        return 0 <= token < self._size and bool(self._live.validate_tokens([token]))

    def forced(self, path: Sequence[int] = ()) -> tuple[int, ...]:
        """The tokens that come next without an alternative."""
        return tuple(self._live.compute_ff_tokens()) if self._move(tuple(path)) else ()

    def _stuck(self) -> InvalidRequest:
        return InvalidRequest(f"the {self._kind} is too complex or allows no token here", PARAMS.get(self._kind))

    def _mask(self, path: tuple[int, ...]) -> Ids | None:
        if self._over or not self._eos.isdisjoint(path):
            return self._ends
        for _ in range(2):  # what failed with the remains of other paths may go well from the start
            if not self._move(path):
                return None
            bits = np.zeros(-(-self._size // 32), dtype=np.int32)
            self._live.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            if not self._live.is_error():
                flags = np.unpackbits(bits.view(np.uint8), count=self._size, bitorder="little")
                return np.flatnonzero(flags).astype(np.uint64)
        return None

    def _move(self, path: tuple[int, ...]) -> bool:
        """Stand after ``path``; False (somewhere on the way) if the grammar or an end of text forbids it."""
        if self._over or not self._eos.isdisjoint(path):
            return False
        if self._live.is_error():
            self._live = self._start.deep_copy()
            self._live.consume_tokens(self._tokens)
            self._path = ()
        common = 0
        while common < min(len(path), len(self._path)) and path[common] == self._path[common]:
            common += 1
        self._live.rollback(len(self._path) - common)
        rest = list(path[common:])
        walked = self._live.try_consume_tokens(rest) if rest else 0
        self._path = path[: common + walked]
        return walked == len(rest) and not self._live.is_error()
