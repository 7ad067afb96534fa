"""The target's hidden rows over texts it wrote: read again in a few passes, kept in bounded files, resumable.

Knows a target with taps, and files. Does not know what the rows are for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner import tree
from sooner.errors import InvalidRequest
from sooner.protocols import Session, Target
from sooner.store.safetensors import to_bf16
from sooner.train.collect import Collected
from sooner.types import Logits, Work

__all__ = ["Passage", "collect_rows", "likeliest", "read_rows", "shards"]

_CHUNK = 128
"""Most rows scored in one pass: 128 rows of 49,152 logits are 25 MB."""

_WIDTH = 24
"""Likeliest successors kept of every row."""

_BLOCK = 64
"""Logits of a row whose maximum is taken together."""

_SHARD = 16_384
"""Rows in one file, about."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One answer as training material, n rows.

    ``hidden``: ``[n, taps * H]`` bfloat16 bits, of no width if none were kept; row i is that of position i, of which
    position 0 is the prompt's last token. ``before``: the tokens before that (none in files of earlier versions).
    ``tokens``: ``[n + 1]``, so that ``tokens[i + 1]`` follows row i. ``ids``, ``chances``: ``[n, width]``, the
    likeliest successors by row i and their probabilities at temperature 1, best first.
    """

    hidden: NDArray[np.uint16]
    tokens: NDArray[np.int32]
    ids: NDArray[np.int32]
    chances: NDArray[np.float16]
    before: NDArray[np.int32]


def collect_rows(
    target: Target,
    texts: Iterable[Collected],
    folder: Path,
    *,
    hidden: bool = True,
    progress: Callable[[int], None] = lambda rows: None,
) -> int:
    """Score ``texts`` with ``target`` and keep the rows of their answers in ``folder``, the ``hidden`` ones too if it
    shows them; returns how many rows there are. A second call with the same texts, or more behind them, goes on where
    the last file ended."""
    folder.mkdir(parents=True, exist_ok=True)
    done = rows = 0
    for path in shards(folder):
        with np.load(path) as file:
            done, rows = int(file["texts"]), rows + len(file["ids"])
    pending: list[Passage] = []
    for text in islice(texts, done, None):
        done += 1
        if len(text.tokens) > 1 and len(text.prompt) + len(text.tokens) <= target.context:
            pending.append(_passage(target, text, hidden=hidden))
            rows += len(pending[-1].ids)
            progress(rows)
        if sum(len(passage.ids) for passage in pending) >= _SHARD:
            _save(folder, pending, done)
            pending = []
    if pending:
        _save(folder, pending, done)
    return rows


def shards(folder: Path) -> list[Path]:
    """The complete files of a collection, in order."""
    return sorted(folder.glob("rows-*.npz"))


def read_rows(path: Path) -> list[Passage]:
    """The passages in one file. Raises `InvalidRequest` if it is damaged."""
    try:
        with np.load(path) as file:
            ends = np.cumsum(file["lengths"])
            hidden, tokens, ids, chances = (file[name] for name in ("hidden", "tokens", "ids", "chances"))
            before = [np.zeros(0, np.int32)] * len(ends)
            if "before" in file:
                before = np.split(file["before"], np.cumsum(file["starts"])[:-1])
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise InvalidRequest(f"{path} is no complete file of rows: remove it and collect again") from error
    spans = zip((0, *ends[:-1].tolist()), ends.tolist(), before, strict=True)
    return [
        Passage(hidden[a:b], tokens[a + i : b + i + 1], ids[a:b], chances[a:b], prompt)
        for i, (a, b, prompt) in enumerate(spans)
    ]


def _passage(target: Target, text: Collected, *, hidden: bool) -> Passage:
    session = target.open(text.prompt[:-1])
    try:
        for chunk in _chunks(text.prompt[len(session.tokens) : -1]):
            target.score([Work(session, chunk, logits=False)])
        parts = list(_scored(target, session, (text.prompt[-1], *text.tokens[:-1]), hidden=hidden))
    finally:
        session.close()
    states, ids, chances = (np.concatenate(part) for part in zip(*parts, strict=True))
    tokens, before = (np.array(t, np.int32) for t in ([text.prompt[-1], *text.tokens], text.prompt[:-1]))
    return Passage(states, tokens, ids, chances, before)


def _scored(
    target: Target, session: Session, tokens: tuple[int, ...], *, hidden: bool
) -> Iterator[tuple[NDArray[Any], ...]]:
    for chunk in _chunks(tokens):
        draft = tree.chain(chunk[1:], 1.0, "text")
        (rows,) = target.score([Work(session, chunk[:1], draft)])
        if hidden and rows.hidden is None:
            raise InvalidRequest("this target shows no hidden rows: load it with taps")
        session.settle(range(len(draft)))
        states = rows.hidden if hidden and rows.hidden is not None else np.zeros((len(chunk), 0), np.float32)
        yield (to_bf16(states), *likeliest(rows.logits))


def _chunks(tokens: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return (tokens[i : i + _CHUNK] for i in range(0, len(tokens), _CHUNK))


def likeliest(logits: Logits) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """The ids ``[n, width]`` of each row's largest logits, best first, and their probabilities at temperature 1."""
    ids = _largest(logits)
    near = np.take_along_axis(logits, ids, axis=1)
    order = np.argsort(-near, axis=1, kind="stable")
    ids, near = np.take_along_axis(ids, order, axis=1), np.take_along_axis(near, order, axis=1)
    total = np.exp(logits - near[:, :1]).sum(axis=1, keepdims=True)
    return ids.astype(np.int32), (np.exp(near - near[:, :1]) / total).astype(np.float16)


def _largest(logits: Logits) -> NDArray[np.intp]:
    """The places of the `_WIDTH` largest values of each row, ascending. They lie in the as many blocks with the largest
    maxima; finding these first is five times as quick as searching whole rows."""
    n, v = logits.shape
    width = min(_WIDTH, v)
    if v % _BLOCK or v < width * _BLOCK:
        return np.sort(np.argpartition(logits, v - width, axis=1)[:, v - width :], axis=1)
    blocks = logits.reshape(n, -1, _BLOCK)
    best = np.argpartition(blocks.max(axis=2), -width, axis=1)[:, -width:]
    places = (np.sort(best, axis=1)[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(n, -1)
    within = np.argpartition(np.take_along_axis(logits, places, axis=1), -width, axis=1)[:, -width:]
    return np.take_along_axis(places, np.sort(within, axis=1), axis=1)


def _save(folder: Path, passages: list[Passage], texts: int) -> None:
    """Write one file, whole or not at all. ``texts``: how many texts are read up to its end."""
    path = folder / f"rows-{texts:07d}.npz"
    unfinished = folder / f".{path.name}.{os.getpid()}"
    try:
        with unfinished.open("wb") as file:
            np.savez(
                file,
                allow_pickle=False,
                texts=np.array(texts),
                lengths=np.array([len(passage.ids) for passage in passages]),
                hidden=np.concatenate([passage.hidden for passage in passages]),
                tokens=np.concatenate([passage.tokens for passage in passages]),
                ids=np.concatenate([passage.ids for passage in passages]),
                chances=np.concatenate([passage.chances for passage in passages]),
                before=np.concatenate([passage.before for passage in passages]),
                starts=np.array([len(passage.before) for passage in passages]),
            )
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
