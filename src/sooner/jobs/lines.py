"""A file of prompts, line by line: what each asks for, or why it cannot be asked.

Knows JSON lines (ours and OpenAI's batch lines) and plain text. Does not know models, engines or answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sooner.errors import InvalidRequest, nearest
from sooner.prompt import Prompt
from sooner.types import Sampling

__all__ = ["Dead", "Job", "read_jobs"]

_LONGEST = 16_000_000
"""Bytes of a line; longer ones are dead: reading goes on without ever holding more."""

_SHOWN = 1_000_000
"""Bytes of a line that are kept to be shown."""

_RENAMED = {"max_completion_tokens": "max_tokens", "bad_words_ids": "bad_words"}
_OPTIONS = {*Sampling.__dataclass_fields__, "expected", "raw"} - {"verify"}
_UNANSWERABLE = ("tools", "tool_choice", "response_format", "prediction", "stream", "functions")
"""Parameters of a batch line's body that would change the answer and are a server's to honour."""


@dataclass(frozen=True, slots=True)
class Job:
    """One line that can be asked. ``line``: its number, from 1. ``id``: its own name, else "". ``options``: what
    `Engine.request` takes besides the prompt. ``digest``: of the line as it stands, which is ``raw``."""

    line: int
    id: str
    prompt: Prompt
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    raw: str = field(default="", repr=False)

    def dead(self, reason: str) -> Dead:
        """This line, since it could not be answered after all."""
        return Dead(self.line, self.id, reason, self.raw, self.digest)


@dataclass(frozen=True, slots=True)
class Dead:
    """One line that cannot be answered: ``reason`` says why, ``raw`` is what it holds (its first million bytes)."""

    line: int
    id: str
    reason: str
    raw: str
    digest: str = ""


def read_jobs(path: Path, system: str | None = None) -> Iterator[Job | Dead]:
    """The lines of ``path`` in order, blank ones left out; never more than one in memory.

    JSON lines if the first that is not blank begins with ``{``, else a prompt a line. A JSON line has ``prompt``,
    ``text``, ``messages`` or ``turns`` (the first is asked), ``id`` (or ``custom_id``, ``question_id``) if it likes,
    and sampling options by name; a ``body`` holds them in OpenAI's batch format. ``system`` goes before every prompt
    that has no system message. Raises `InvalidRequest` if the file cannot be read.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror or error}): check the path") from None
    with file:
        objects: bool | None = None
        number = 0
        while (data := _next_line(file)) is not None:
            number += 1
            text = data.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else data.strip()
            if not text:
                continue
            objects = text.startswith(b"{") if objects is None else objects
            yield _read(number, text, objects, system)


def _next_line(file: IO[bytes]) -> bytes | None:
    """The next line, or its beginning where it is too long; None at the end. Raises `InvalidRequest`."""
    try:
        line = file.readline(_LONGEST + 1)
        if not line:
            return None
        rest = line
        while len(rest) > _LONGEST and not rest.endswith(b"\n"):
            rest = file.readline(_LONGEST + 1)
    except OSError as error:  # a folder, a disk that fails
        raise InvalidRequest(f"{file.name} cannot be read ({error.strerror or error}): check the path") from None
    return line


def _read(number: int, data: bytes, objects: bool, system: str | None) -> Job | Dead:
    digest = hashlib.sha256(data).hexdigest()[:16]
    raw, name = data[:_SHOWN].decode("utf-8", "replace"), ""
    try:
        if len(data) > _LONGEST:
            raise InvalidRequest(f"the line is longer than {_LONGEST // 1_000_000} MB")
        text = data.decode()
        if not objects:
            return Job(number, "", _with_system(text, system, {}), {}, digest, raw)
        record = _object(text)
        name = next((str(record[key]) for key in ("custom_id", "id", "question_id") if record.get(key) is not None), "")
        body = record.get("body", record)
        if not isinstance(body, dict):
            raise InvalidRequest("body must be an object")
        options = _options(body, strict="body" in record)
        return Job(number, name, _with_system(_prompt(body), system, options), options, digest, raw)
    except UnicodeDecodeError:
        return Dead(number, name, "not UTF-8 text", raw, digest)
    except InvalidRequest as error:
        return Dead(number, name, str(error), raw, digest)


def _object(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON ({error if isinstance(error, ValueError) else 'nested too deep'})") from None
    if not isinstance(record, dict):
        raise InvalidRequest("not a JSON object")
    return record


def _prompt(body: Mapping[str, Any]) -> Prompt:
    turns = body.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    for text in (body.get("prompt"), body.get("text"), first):
        if isinstance(text, str) and text.strip():
            return text
        if isinstance(text, list) and text and all(isinstance(entry, int) for entry in text):
            return text
    messages = body.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(entry, dict) for entry in messages):
        if all(isinstance(message.get("content"), str) for message in messages):
            return messages
        raise InvalidRequest("a message without text: content must be a string")
    raise InvalidRequest("no prompt, text, messages or turns with something in it")


def _options(body: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """The options among ``body``'s keys; ``strict`` also refuses what a server would have honoured."""
    found = {}
    for key, value in body.items():
        name = _RENAMED.get(key, key)
        if name in _OPTIONS:
            if value is not None:
                found[name] = _biases(value) if name == "logit_bias" else value
        elif strict and key in _UNANSWERABLE and value:
            raise InvalidRequest(f"{key} is not known here: sooner serve answers such requests")
        elif hint := nearest(key, _OPTIONS) if _looks_meant(key) else "":
            raise InvalidRequest(f"unknown option {key!r}{hint}", key)
    return found


def _biases(value: Any) -> Any:
    """JSON's keys are strings."""
    try:
        return {int(token): bias for token, bias in value.items()}
    except (AttributeError, ValueError):
        return value  # refused where it is checked


def _looks_meant(key: str) -> bool:
    """Whether ``key`` is a sampling option mistyped rather than a note of the user's own."""
    from difflib import get_close_matches

    return bool(get_close_matches(key, _OPTIONS, n=1, cutoff=0.85))


def _with_system(prompt: Prompt, system: str | None, options: Mapping[str, Any]) -> Prompt:
    if system is None or options.get("raw"):
        return prompt
    told = {"role": "system", "content": system}
    if isinstance(prompt, str):
        return [told, {"role": "user", "content": prompt}]
    messages = [entry for entry in prompt if isinstance(entry, Mapping)]
    if len(messages) < len(prompt):
        raise InvalidRequest("token ids have no place for --system: leave it out")
    return prompt if messages[0].get("role") == "system" else [told, *messages]
