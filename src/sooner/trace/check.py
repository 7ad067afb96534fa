"""What a step's record must have, so that whoever reads it need not look again.

Knows shapes and types of fields. Does not know what they mean, or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sooner.trace.record import TIMES

__all__ = ["check_step"]

Record = Mapping[str, Any]


def check_step(record: Record) -> str:
    """What is wrong with a record of type step; empty if nothing is."""
    return next((what for what, holds in _RULES if not holds(record)), "")


def _draft(record: Record) -> bool:
    draft = record.get("draft")
    names = ("tokens", "parents", "confidence", "sources")
    return isinstance(draft, dict) and _parallel(draft, names, ("p", "q")) and _tokens(draft["tokens"])


def _tree(record: Record) -> bool:
    return all(type(parent) is int and -1 <= parent < node for node, parent in enumerate(record["draft"]["parents"]))


def _path(record: Record) -> bool:
    path, nodes = record.get("path"), len(record["draft"]["tokens"])
    return isinstance(path, list) and all(type(node) is int and 0 <= node < nodes for node in path)


def _emitted(record: Record) -> bool:
    return _parallel(record, ("tokens", "sources"), ("p", "top", "logprobs")) and _tokens(record["tokens"])


def _chances(record: Record) -> bool:
    draft = record["draft"]
    given = (draft["confidence"], record.get("p"), draft.get("p"), draft.get("q"))
    numbers = all(value is None or _number(value) for values in given for value in values or ())
    return numbers and all(_row(row) for row in record.get("top") or ())


def _row(row: object) -> bool:
    if not isinstance(row, list):
        return False
    return all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and _number(pair[1]) for pair in row)


def _names(record: Record) -> bool:
    return all(isinstance(name, str) for name in (*record["draft"]["sources"], *record["sources"]))


def _counts(record: Record) -> bool:
    needed = all(type(record.get(name)) is int for name in ("sequence", "choice", "index"))
    return needed and all(type(record.get(name, 0)) is int for name in ("rows", "pass_rows"))


def _times(record: Record) -> bool:
    return all(_number(record.get(name, 0)) for name in TIMES)


def _end(record: Record) -> bool:
    finish = record.get("finish")
    return finish is None or (isinstance(finish, dict) and isinstance(finish.get("reason"), str))


_RULES: tuple[tuple[str, Callable[[Record], bool]], ...] = (
    ("its draft", _draft),
    ("the tree of its draft", _tree),
    ("its path", _path),
    ("its tokens", _emitted),
    ("its sources", _names),
    ("its chances", _chances),
    ("its counts", _counts),
    ("its times", _times),
    ("its end", _end),
    ("its text", lambda record: isinstance(record.get("text"), str)),
)


def _parallel(record: Record, needed: Iterable[str], allowed: Iterable[str]) -> bool:
    """Whether the lists ``needed``, and those ``allowed`` that are there, are lists of one length."""
    lists = [record.get(name) for name in needed]
    lists += [record[name] for name in allowed if record.get(name) is not None]
    lengths = [len(values) if isinstance(values, list) else -1 for values in lists]
    return lengths[0] >= 0 and lengths.count(lengths[0]) == len(lengths)


def _tokens(values: Iterable[object]) -> bool:
    return all(type(token) is int for token in values)


def _number(value: object) -> bool:
    return type(value) in (int, float)
