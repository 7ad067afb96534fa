"""Function calls: what a client offers, how each model family writes a call, and calls read from a growing text.

Knows OpenAI's shapes and the formats of Hermes and Qwen (and SmolLM2, whose tags hold a list), Llama 3 and Mistral.
Does not know tokens, engines or HTTP.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from sooner.errors import InvalidRequest, nearest
from sooner.server.call_reader import CallReader

__all__ = ["FORMATS", "ToolParser", "Tools", "format_of", "template_messages"]

Delta = dict[str, Any]
"""A piece of a message in OpenAI's shape: ``{"content": ...}`` or ``{"tool_calls": [...]}``."""


@dataclass(frozen=True, slots=True)
class _Format:
    """How a family writes calls. ``bare``: what a text of nothing but calls begins with where the mark is a control
    token, which is no text. ``named``: a call may be its name, ``[ARGS]`` and its arguments."""

    mark: str
    close: str
    bare: str
    arguments: str
    named: bool = False
    id_length: int = 24


FORMATS: Mapping[str, _Format] = {
    "hermes": _Format("<tool_call>", "</tool_call>", "", "arguments"),
    "llama3": _Format("<|python_tag|>", "<|eom_id|>", "{", "parameters"),
    "mistral": _Format("[TOOL_CALLS]", "", "[{", "arguments", named=True, id_length=9),
}
"""The formats by name. Mistral's templates insist on ids of nine letters and digits."""


def format_of(chat_template: str) -> str | None:
    """The format in which a model with this chat template writes calls; None if it was told of no tools, or of a format
    that is not known here."""
    if "tools" not in chat_template:
        return None
    if "[TOOL_CALLS]" in chat_template:
        return "mistral"
    if "<tool_call>" in chat_template:
        return None if "<function=" in chat_template else "hermes"
    llama = "<|python_tag|>" in chat_template or re.search(r'\{\\?"name\\?": function name', chat_template)
    return "llama3" if llama else None


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``messages`` as chat templates want them: the arguments of earlier calls as objects, not as JSON text."""
    turns = [dict(message) for message in messages]
    for turn in turns:
        calls = turn.get("tool_calls")
        if isinstance(calls, list):
            turn["tool_calls"] = [_with_object(call) for call in calls]
    return turns


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions a client offers and which may be called: ``choice`` is none, auto, required, or one's ``named``."""

    offered: tuple[Mapping[str, Any], ...]
    choice: Literal["none", "auto", "required", "named"]
    named: str = ""

    @classmethod
    def read(cls, tools: Any, tool_choice: Any = None) -> Tools:
        """From a request's ``tools`` and ``tool_choice``. Raises `InvalidRequest` naming what is wrong with them."""
        if not isinstance(tools, list | tuple) or not tools:
            raise InvalidRequest("tools must be a non-empty list of functions, or left out", "tools")
        names = [_name(f"tools[{i}]", tool) for i, tool in enumerate(tools)]
        if len(set(names)) < len(names):
            raise InvalidRequest("tools names a function twice: give each its own name", "tools")
        if tool_choice is None or tool_choice in ("none", "auto", "required"):
            return cls(tuple(tools), tool_choice or "auto")
        wanted = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
        name = wanted.get("name") if isinstance(wanted, Mapping) else None
        if not isinstance(name, str):
            shape = '"none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
            raise InvalidRequest(f"tool_choice must be {shape}", "tool_choice")
        if name not in names:
            hint = nearest(name, names)
            raise InvalidRequest(f"tool_choice names {name!r}, which is not among tools{hint}", "tool_choice")
        return cls(tuple(tools), "named", name)

    def constraint(self, format: str) -> tuple[Literal["grammar"], str] | None:
        """Kind and value for `compile_constraint` where one call must be made (required, named), else None.

        The arguments follow the function's JSON schema, on which `compile_constraint` has the last word.
        """
        if self.choice not in ("required", "named"):
            return None
        functions = [tool["function"] for tool in self.offered]
        chosen = [f for f in functions if self.choice == "required" or f["name"] == self.named]
        key = FORMATS[format].arguments
        calls = [_call_schema(f, key, f"#/anyOf/{i}/properties/{key}") for i, f in enumerate(chosen)]
        style = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        schema = json.dumps({"x-guidance": style, "anyOf": calls})
        around = {"hermes": '"<tool_call>\\n" call "\\n</tool_call>"', "mistral": '"[" call "]"', "llama3": "call"}
        return "grammar", f"start: {around[format]}\ncall: %json {schema}"


def _name(where: str, tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping):
        raise InvalidRequest(f'{where} must be {{"type": "function", "function": {{"name": ...}}}}', where)
    name, parameters, where = function.get("name"), function.get("parameters"), f"{where}.function"
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise InvalidRequest(f"{where}.name must be 1 to 64 letters, digits, _, . or -", f"{where}.name")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequest(f"{where}.parameters must be a JSON schema", f"{where}.parameters")
    return name


def _call_schema(function: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    """The schema of one call, its own references moved to where the arguments' schema now is."""
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    arguments = _moved(function.get("parameters") or nothing, place)
    properties = {"name": {"const": function["name"]}, key: arguments}
    return {"type": "object", "properties": properties, "required": ["name", key], "additionalProperties": False}


def _moved(schema: Any, place: str) -> Any:
    if isinstance(schema, Mapping):
        moved = {key: _moved(value, place) for key, value in schema.items()}
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = place + reference[1:]
        return moved
    return [_moved(item, place) for item in schema] if isinstance(schema, list) else schema


class ToolParser:
    """Reads a growing text into content and calls. Law: however the text is cut, content and calls are the same.

    A call is told when its function is known; its arguments follow as they are written. White space around calls is
    dropped; what looks like a call and is none is content. ``key`` makes the calls' ids (None: fresh ones). ``content``
    and ``calls`` are the message so far.
    """

    def __init__(self, format: str, *, key: str | None = None) -> None:
        if format not in FORMATS:
            raise InvalidRequest(f"no tool call format {format!r}{nearest(format, FORMATS)}", "tools")
        self._format = FORMATS[format]
        self._key = key or secrets.token_hex(16)
        self.content = ""
        self.calls: list[dict[str, Any]] = []
        self._events: list[tuple[str, int, str]] = []  # what, of which call, its text
        self._state = self._text
        self._held = ""  # in text: white space and the beginning of a mark
        self._raw = ""  # among calls: what becomes content again if it is no call
        self._call: CallReader | None = None
        self._shown = False  # among calls: whether the last one was told
        self._began = False

    def feed(self, text: str) -> list[Delta]:
        """What became certain with ``text``."""
        for character in text:
            self._state(character)
        return self._drain()

    def finish(self) -> list[Delta]:
        """The text ended: what is still held back. A call that was cut off stays as far as it was told."""
        within = self._state != self._text
        rest, self._held, self._raw = self._raw if within else self._held, "", ""
        if not (within and self._shown) and not (self.calls and rest.isspace()):
            self._say(rest)
        return self._drain()

    # -- one character in each state: a text, among calls, a call's bare name, a call -----------------------------

    def _text(self, character: str) -> None:
        self._held += character
        marks = [self._format.mark]
        if self._format.bare and not self._began:
            marks.append(self._format.bare)
        while self._held:
            tail = self._held.lstrip()
            if tail in marks:
                self._raw, self._held, self._state, self._shown = self._held, "", self._gap, False
                if tail == self._format.bare:
                    self._begin(CallReader(self._format.arguments, strict=True))
                    self._reads("{")
                return
            if any(mark.startswith(tail) for mark in marks):
                return
            cut = len(self._held) - len(tail) + 1
            while not any(mark.startswith(self._held[cut:].lstrip()) for mark in marks):
                cut += 1
            self._say(self._held[:cut])
            self._held = self._held[cut:]
            marks = marks[:1]

    def _gap(self, character: str) -> None:
        self._raw += character
        close, closing = self._format.close, self._held + character
        if close and close.startswith(closing):
            self._held = closing
            if closing == close:
                self._held, self._raw, self._state = "", "", self._text
        elif self._held:
            self._back()
        elif character == "{":
            self._begin(CallReader(self._format.arguments, strict=False))
            self._reads(character)
        elif self._format.named and re.match(r"\w", character):
            self._held, self._state = character, self._name
        elif (character == "[" and self._shown) or not (character.isspace() or character in "[],;"):
            self._back()

    def _name(self, character: str) -> None:
        self._raw += character
        self._held += character
        found = re.fullmatch(r"([\w.-]+)\s*(?:\[ARGS\])?\s*\{", self._held)
        if found:
            self._begin(CallReader(self._format.arguments, strict=False, name=found[1]))
            self._reads("{")
        elif not re.fullmatch(r"[\w.-]+\s*(\[(A(R(G(S(\]\s*)?)?)?)?)?)?", self._held):
            self._back()

    def _in_call(self, character: str) -> None:
        if not self._shown:
            self._raw += character
        self._reads(character)

    # -- what they do ---------------------------------------------------------------------------------------------

    def _begin(self, call: CallReader) -> None:
        self._call, self._held, self._shown, self._state = call, "", False, self._in_call

    def _reads(self, character: str) -> None:
        call = self._call
        assert call is not None, "only a call reads"
        arguments = call.push(character)
        if call.announced and not self._shown:
            self._announce(call.name)
        if arguments and self._shown:
            self._argue(arguments)
        if call.state == "open":
            return
        self._call = None
        if self._shown:
            self._raw, self._state = "", self._gap
            if call.state == "bad":
                self._gap(character)
        else:
            self._back()

    def _back(self) -> None:
        """What was read since the last call is none: content again, unless a call went before and it is a mark."""
        raw, self._raw, self._held, self._state = self._raw, "", "", self._text
        if self._shown:
            self._shown = False
            for character in raw:
                self._text(character)
        else:
            self._say(raw)

    def _say(self, text: str) -> None:
        if text:
            self._began = True
            self._events.append(("content", 0, text))

    def _announce(self, name: str) -> None:
        index, self._shown, self._began = len(self.calls), True, True
        digest = hashlib.sha256(f"{self._key}/{index}".encode()).hexdigest()[: self._format.id_length]
        id = digest if self._format.id_length < 24 else f"call_{digest}"
        self.calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": ""}})
        self._events.append(("call", index, ""))

    def _argue(self, text: str) -> None:
        self._events.append(("arguments", len(self.calls) - 1, text))

    def _drain(self) -> list[Delta]:
        """The events since the last time as deltas, neighbours of one kind together."""
        deltas: list[Delta] = []
        for (kind, index), events in groupby(self._events, key=lambda event: event[:2]):
            text = "".join(piece for _, _, piece in events)
            if kind == "content":
                self.content += text
                deltas.append({"content": text})
            elif kind == "call":
                call = self.calls[index]
                deltas.append({"tool_calls": [{"index": index, **call, "function": dict(call["function"])}]})
            else:
                self.calls[index]["function"]["arguments"] += text
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        self._events = []
        return deltas
