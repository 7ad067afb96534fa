"""Drafting from files the user names: the longest match of the last tokens in them, and how it went on there.

Knows the user's files as a suffix array. Does not know other sequences or any model.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sooner.draft.continuations import grow_continuations
from sooner.draft.corpus_files import CorpusFiles, find_files, read_text
from sooner.draft.corpus_index import CorpusIndex
from sooner.draft.one_by_one import OneByOne
from sooner.draft.options import at_least
from sooner.errors import DraftError
from sooner.protocols import Context
from sooner.text import TextCodec
from sooner.types import EMPTY_DRAFT, Draft

__all__ = ["CorpusDrafter", "Shelf"]

log = logging.getLogger("sooner")

FORMAT = 1

_OCCURRENCES = 16
"""Occurrences of a match that are looked at."""

_PIECE = 1 << 16
"""Characters that are tokenized at a time: bounds the memory that takes."""

_NOTES = "notes"

T = TypeVar("T")


class Shelf(Protocol):
    """Where an index is kept between runs (`sooner.store.shelf.shelved`)."""

    def __call__(
        self,
        kind: str,
        slot: str,
        identity: str,
        *,
        build: Callable[[Path], None],
        read: Callable[[Path], T],
        changed: Callable[[], None] = ...,
    ) -> T:
        """What ``read`` makes of the folder that ``build`` filled for this slot and identity."""
        ...


class CorpusDrafter(OneByOne):
    """Retrieval from a corpus (REST, 2311.08252): a tree of the commonest continuations of the longest match.

    ``path``: a UTF-8 text file or a folder of them; binary and hidden files are passed over. ``max``: most nodes;
    ``depth``: deepest; ``max_match``, ``min_match``: tokens matched; ``megabytes``: most text that is indexed, files
    beyond it are left out. ``shelf`` keeps the index (None: it is built anew each time, in memory), 6 bytes a token,
    8 where the vocabulary is larger than 65,535. ``notes`` says in one line each what was left out or built again.
    Raises `DraftError` if there is no text in ``path``.
    """

    name = "corpus"

    def __init__(
        self,
        *,
        path: str,
        codec: TextCodec,
        shelf: Shelf | None = None,
        max: int = 8,
        depth: int = 6,
        max_match: int = 16,
        min_match: int = 2,
        megabytes: int = 32,
    ) -> None:
        self._max = at_least(1, max=max)
        self._depth = at_least(1, depth=depth)
        self._min_match = at_least(1, min_match=min_match)
        self._max_match = at_least(min_match, max_match=max_match)
        self._most = at_least(1, megabytes=megabytes) << 20
        if self._most > 1 << 28:
            raise DraftError(f"drafter option megabytes must be an integer of at most 256, not {megabytes}")
        found = find_files(Path(path).expanduser().absolute())
        self._path = path
        self._codec = codec
        self.notes: list[str] = []
        self.index = self._build(found)[0] if shelf is None else self._kept(found, shelf)
        for note in self.notes:
            log.warning("%s", note)

    def _propose(self, context: Context) -> Draft:
        budget = min(self._max, context.budget)
        if budget < 1:
            return EMPTY_DRAFT
        length, first, last = self.index.longest(context.tokens[-self._max_match :], self._min_match)
        depth = min(self._depth, budget)
        found = self.index.after(length, first, last, depth, _OCCURRENCES) if length else []
        return grow_continuations(context, found, length, budget=budget, depth=depth, source=self.name)

    def _kept(self, found: CorpusFiles, shelf: Shelf) -> CorpusIndex:
        def build(folder: Path) -> None:
            index, notes = self._build(found)
            index.save(folder)
            (folder / _NOTES).write_text("\n".join(notes), encoding="utf-8", errors="replace")

        def read(folder: Path) -> tuple[CorpusIndex, list[str]]:
            return CorpusIndex.load(folder), (folder / _NOTES).read_text(encoding="utf-8").splitlines()

        def changed() -> None:
            rebuilt.append(f"corpus {self._path} changed since it was indexed: the index was built again")

        rebuilt: list[str] = []
        identity = hashlib.sha256(found.identity.encode(errors="surrogateescape")).hexdigest()
        where = Path(self._path).expanduser().absolute()
        slot = "\n".join([str(FORMAT), str(where), _tokenizer_hash(self._codec), str(self._most)])
        index, notes = shelf("corpus", slot, identity, build=build, read=read, changed=changed)
        self.notes = [*rebuilt, *notes]
        return index

    def _build(self, found: CorpusFiles) -> tuple[CorpusIndex, list[str]]:
        left_out: list[str] = []
        over: list[str] = []
        texts: list[NDArray[np.int32]] = []
        room = self._most
        for file in found.files:
            try:
                text = read_text(file, room)
            except ValueError:
                left_out.append(f"{file.name} is binary")
            except OSError as error:
                left_out.append(f"{file.name} cannot be read: {error.strerror or error}")
            else:
                if text is None:
                    over.append(file.name)
                elif len(ids := self._tokens(text)):
                    texts.append(ids)
                    room -= len(text.encode())
        self.notes = self._notes(left_out, over)
        if not texts:
            why = f" ({_some([*left_out, *over])})" if left_out or over else ""
            remedy = "raise megabytes" if over else "name UTF-8 text files"
            raise DraftError(f"corpus {self._path} has no usable text{why}: {remedy}")
        return CorpusIndex.build(texts, self._codec.vocab_size), self.notes

    def _notes(self, left_out: Sequence[str], over: Sequence[str]) -> list[str]:
        notes = []
        if left_out:
            notes.append(f"corpus {self._path} is used without these: {_some(left_out)}")
        if over:
            bound = f"the bound of {self._most >> 20} MB of text (raise megabytes)"
            notes.append(f"corpus {self._path} is used without these, beyond {bound}: {_some(over)}")
        return notes

    def _tokens(self, text: str) -> NDArray[np.int32]:
        pieces = [np.array(self._codec.encode(piece, bos=False), dtype=np.int32) for piece in _pieces(text)]
        return np.concatenate([np.empty(0, dtype=np.int32), *pieces])


def _pieces(text: str) -> Iterator[str]:
    """``text`` in pieces that end at line ends where they can."""
    begin = 0
    while begin < len(text):
        end = begin + _PIECE
        if end < len(text):
            end = text.rfind("\n", begin + _PIECE // 2, end) + 1 or end
        yield text[begin:end]
        begin = end


def _some(names: Sequence[str]) -> str:
    """At most three of them, printable, and how many more."""
    shown = ", ".join("".join(c if c.isprintable() else "?" for c in name) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _tokenizer_hash(codec: TextCodec) -> str:
    """Tells tokenizers apart: by one in sixteen of their tokens, and by how they cut a sample."""
    digest = hashlib.sha256(str(codec.vocab_size).encode())
    for id in range(0, codec.vocab_size, 16):
        token = codec.token_bytes(id)
        digest.update(len(token).to_bytes(4, "little") + token)
    sample = "It's 1,234.5 km to  Zürich!\n\n\tdef f(x): return x**2  # 한국어 日本語 😀\r\n"
    digest.update(repr(codec.encode(sample, bos=False)).encode())
    return digest.hexdigest()
