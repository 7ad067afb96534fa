"""Prompts from a file: Spec-Bench questions, JSON lines, recorded traces, or plain text with one prompt a line.

Knows file formats and which questions are kept for evaluation. Does not know tokenizers, models or what is measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sooner.errors import InvalidRequest
from sooner.prompt import Prompt

__all__ = ["UNNAMED", "Item", "for_evaluation", "parse_workload", "per_category", "read_workload"]

UNNAMED = "prompts"
"""The category of prompts that name none."""


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of a workload. ``id``: its own name, else its line number. ``model``: the sha256 of the model whose
    token ids ``prompt`` holds (a trace's), "" for text."""

    id: str
    category: str
    prompt: Prompt
    model: str = ""


def read_workload(file: str) -> list[Item]:
    """The prompts of ``file`` (- is standard input), in order. Raises `InvalidRequest` if it holds none."""
    where = "standard input" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where} is not UTF-8 text: convert it first, as with iconv -t utf-8") from None
    except OSError as error:
        raise InvalidRequest(f"{where} cannot be read ({error.strerror or error}): check the path") from None
    return parse_workload(text, where)


def parse_workload(text: str, where: str) -> list[Item]:
    """The prompts in ``text``: JSON lines if its first line is an object, else one prompt a line.

    A JSON line is a Spec-Bench question (``question_id``, ``category``, ``turns``, of which the first is asked), an
    object with ``prompt``, ``text`` or ``messages`` (and ``id``, ``category`` if it likes), or a line of a trace, of
    which the header counts. ``where`` names the file in messages. Raises `InvalidRequest`.
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if lines and lines[0][1].lstrip().startswith("{"):
        items = list(_from_json(lines, where))
    else:
        items = [Item(str(number), UNNAMED, line.strip()) for number, line in lines]
    if not items:
        raise InvalidRequest(
            f"{where} holds no prompts: write one a line, or JSON lines with prompt, messages or turns"
        )
    return items


def for_evaluation(items: Sequence[Item]) -> list[Item]:
    """Those whose id is a number divisible by 5 or 7, which drafters are never trained on. Raises `InvalidRequest`."""
    kept = [item for item in items if item.id.isdecimal() and (int(item.id) % 5 == 0 or int(item.id) % 7 == 0)]
    if not kept:
        raise InvalidRequest("--evaluation-only leaves no prompt: no id is a number divisible by 5 or 7; leave it out")
    return kept


def per_category(items: Sequence[Item], most: int | None) -> dict[str, list[Item]]:
    """The items by category in order of appearance, at most ``most`` of each (None: all)."""
    found: dict[str, list[Item]] = {}
    for item in items:
        group = found.setdefault(item.category, [])
        if most is None or len(group) < most:
            group.append(item)
    return found


def _from_json(lines: Sequence[tuple[int, str]], where: str) -> Iterator[Item]:
    trace = False
    for number, line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            if trace:  # a recording that was cut off in mid-line
                return
            raise InvalidRequest(f"{where}, line {number}, is not JSON: write one object a line") from None
        if not isinstance(record, dict):
            raise InvalidRequest(f"{where}, line {number}, is not a JSON object: write one object a line")
        trace = trace or record.get("type") == "header"
        if trace and record.get("type", "header") != "header":
            continue
        prompt, model = _prompt(record)
        if prompt is None:
            raise InvalidRequest(f"{where}, line {number}, has no prompt, text, messages or turns with something in it")
        name = record.get("question_id", record.get("id", number))
        category = record.get("category", "trace" if model else UNNAMED)
        yield Item(str(name), str(category), prompt, model)


def _prompt(record: Mapping[str, Any]) -> tuple[Prompt | None, str]:
    """The prompt of one JSON line, None if there is none, and the model it is bound to."""
    if record.get("type") == "header":
        ids, fingerprint = record.get("prompt"), record.get("fingerprint")
        model = fingerprint.get("model") if isinstance(fingerprint, Mapping) else None
        return (ids if _list_of(int, ids) else None), str(model or "unknown")
    turns = record.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    for text in (first, record.get("prompt"), record.get("text")):
        if isinstance(text, str) and text.strip():
            return text, ""
    messages = record.get("messages")
    if _list_of(dict, messages) and all(isinstance(message.get("content"), str) for message in messages or ()):
        return messages, ""
    return None, ""


def _list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, kind) for entry in value)
