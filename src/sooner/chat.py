"""Chat templates: a list of messages becomes the prompt text the model was trained on.

Knows the Hugging Face template conventions and keeps templates, which come with model files, in a sandbox. Does not
know tokenizers or models.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sooner.errors import InvalidRequest, UnsupportedModel, one_line
from sooner.sounds import is_sound

__all__ = ["ChatTemplate"]

_MAX_OUTPUT = 1 << 24
"""Characters one rendered prompt may have."""


class ChatTemplate:
    """One model's chat format.

    A model without a template (``source`` None) is a base model: it continues text. Guessing a format for it would
    silently change what it sees, so one user message is taken as the text to continue and anything else is refused.
    """

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        """Compile ``source``, which stays readable. Raises `UnsupportedModel` if it is no valid template."""
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._compiled = None if source is None else _Compiled(source)
        self._places = source is not None and "image" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        pictures: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt for ``messages`` (mappings with ``role`` and ``content``), ready for ``encode(special=True)``.

        ``add_generation_prompt`` opens the assistant's turn. ``pictures``: contents may have
        ``{"type": "image"}`` parts, whose places the text marks. ``variables`` reach the template (``enable_thinking``
        and the like). Raises `InvalidRequest` for malformed messages and for whatever the template itself refuses.
        """
        turns = _checked(messages, pictures and self._places)
        if self._compiled is None:
            return _plain(turns, tools)
        context = {"tools": tools, "documents": None, **self._tokens, **variables}
        try:
            return self._compiled.render(messages=turns, add_generation_prompt=add_generation_prompt, **context)
        except Exception as error:  # a template is a program: it can fail in any way
            reason = one_line(error)
            raise InvalidRequest(f"the model's chat template refuses these messages: {reason}", "messages") from error


def _plain(turns: list[dict[str, Any]], tools: Any) -> str:
    if tools or len(turns) != 1 or turns[0]["role"] != "user" or not isinstance(turns[0]["content"], str):
        raise InvalidRequest(
            "this model has no chat template: send one user message for it to continue, or use a chat model", "messages"
        )
    return str(turns[0]["content"])


def _checked(messages: Sequence[Mapping[str, Any]], pictures: bool) -> list[dict[str, Any]]:
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequest("messages must be a non-empty list of {role, content}", "messages")
    return [_message(i, message, pictures) for i, message in enumerate(messages)]


def _message(index: int, message: Any, pictures: bool) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be a mapping with role and content, not {type(message).__name__}", where)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}.role must be a non-empty string such as 'user', not {role!r}", f"{where}.role")
    if content is None and not message.get("tool_calls"):
        raise InvalidRequest(f"{where}.content is missing; give a string", f"{where}.content")
    if pictures and isinstance(content, str | list):  # such templates walk through parts, text alone included
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return {**message, "role": role, "content": [_shown(where, part) for part in parts]}
    if isinstance(content, list):
        content = "".join(_part(where, part) for part in content)
    if content is not None and not isinstance(content, str):
        raise InvalidRequest(f"{where}.content must be a string, not {type(content).__name__}", f"{where}.content")
    return {**message, "role": role, "content": content}


def _part(where: str, part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, Mapping) and part.get("type") in ("image", "image_url"):
        raise InvalidRequest(
            f"{where}.content has an image and this model takes none: leave it out", f"{where}.content"
        )
    if is_sound(part):
        raise InvalidRequest(
            f"{where}.content has a sound and this model takes none: leave it out, or use one that does, such as "
            "Whisper",
            f"{where}.content",
        )
    raise InvalidRequest(f"{where}.content may hold text parts only; this is a text model", f"{where}.content")


def _shown(where: str, part: Any) -> dict[str, str]:
    return {"type": "image"} if part == {"type": "image"} else {"type": "text", "text": _part(where, part)}


class _Compiled:
    """A template and the sandbox it runs in; one rendering at a time, since the sandbox counts."""

    def __init__(self, source: str) -> None:
        from jinja2 import TemplateError

        from sooner.sandbox import TemplateSandbox

        self._lock = threading.Lock()
        self._sandbox = TemplateSandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except (TemplateError, RecursionError) as error:
            reason = one_line(error)
            raise UnsupportedModel(f"the model's chat template is not valid ({reason}); use another model") from error

    def render(self, **context: Any) -> str:
        with self._lock:
            self._sandbox.loops = 0
            return _bounded(self._template.generate(**context))


def _bounded(pieces: Iterable[str]) -> str:
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > _MAX_OUTPUT:
            raise ValueError("it writes without end")
        kept.append(piece)
    return "".join(kept)
