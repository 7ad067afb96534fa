"""One function call, read from its JSON a character at a time: the name, and the arguments as they are written.

Knows JSON objects and the two keys that matter. Does not know what stands around a call.
"""

from __future__ import annotations

import json
from typing import Literal

__all__ = ["CallReader"]

_KEYS = frozenset({"name", "type", "id", "arguments", "parameters"})


class CallReader:
    """``state`` is open until the object ends (done) or cannot be a call (bad, with the character that showed it).

    ``announced``: it is known to be a call of ``name``. ``strict``: nothing but its looks says that this is a call, so
    it must have arguments and no foreign key. With ``name`` given, the object read is the arguments alone.
    """

    def __init__(self, arguments: str, *, strict: bool, name: str = "") -> None:
        self.name = name
        self.announced = False
        self.state: Literal["open", "done", "bad"] = "open"
        self._wanted = {arguments, "arguments", "parameters"}
        self._strict = strict
        self._alone = bool(name)
        self._place = "value" if name else "start"
        self._key = arguments if name else ""
        self._token = ""
        self._depth = 0
        self._string = False
        self._escaped = False
        self._waiting = ""  # arguments that came before the name
        self._argued = False

    def push(self, character: str) -> str:
        """Read one character; returns the text of the arguments that became known and may be told."""
        told = self._value(character) if self._token or self._place == "value" else self._between(character)
        if told:
            self._argued = True
        self.announced = self.announced or bool(self.name and (self._argued or not self._strict))
        if self.state == "done" and not self.name:
            self.state = "bad"
        if self.state == "done" and not self._argued:
            if self._strict:
                self.state = "bad"
                return ""
            self._argued, told = True, "{}"
        self._waiting += told
        if not self.announced:
            return ""
        told, self._waiting = self._waiting, ""
        return told

    def _between(self, character: str) -> str:
        """Outside of keys and values."""
        following = {("start", "{"): "key", ("colon", ":"): "value", ("comma", ","): "key"}
        if character.isspace():
            return ""
        if (self._place, character) in following:
            self._place = following[self._place, character]
        elif self._place == "key" and character == '"':
            self._place, self._token, self._string = "in key", character, True
        elif self._place in ("key", "comma") and character == "}":
            self.state = "done"
        else:
            self.state = "bad"
        return ""

    def _value(self, character: str) -> str:
        """Inside a key or a value, or before a value."""
        if not self._token and character.isspace():
            return ""
        outside = not self._string
        if self._token and outside and self._depth == 0 and character in ",}]":  # a number or a word ends before it
            told = self._end()
            return told + (self._between(character) if self.state == "open" else "")
        streams = self._place == "value" and self._key in self._wanted and (self._token or character)[0] == "{"
        if not (streams and self._token):  # what is told at once need not be kept
            self._token += character
        self._track(character)
        ended = self._depth == 0 and not self._string and character in '"}]'
        if streams:
            if ended:
                self._end()
            return character
        return self._end() if ended else ""

    def _track(self, character: str) -> None:
        if self._string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._string = False
        elif character == '"':
            self._string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

    def _end(self) -> str:
        """A key or a value is complete; returns arguments that were not told while they were read."""
        text, self._token = self._token, ""
        value = _json(text)
        if self._place == "in key":
            self._key, self._place = str(value), "colon"
            if self._strict and self._key not in _KEYS:
                self.state = "bad"
            return ""
        self._place = "comma"
        if self._key in self._wanted:
            if self._alone:
                self.state = "done"
            if text[0] != "{":  # some write them as JSON text once more, or none
                return value if isinstance(value, str) else "{}" if value is None else text
        elif self._key == "name":
            self.name = value if isinstance(value, str) else ""
            if not self.name:
                self.state = "bad"
        return ""


def _json(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text
