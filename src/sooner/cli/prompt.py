"""What a command is asked: the prompt and the expected text, from arguments, files and standard input.

Knows where text comes from. Does not know what becomes of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sooner.errors import InvalidRequest
from sooner.pictures import picture_part

__all__ = ["ask", "expected_text", "read_prompt", "sound_of", "user_message"]


def read_prompt(prompt: str | None, file: str | None, *, raw: bool = False, needed: bool = True) -> str:
    """The prompt from the argument, ``file`` (behind the argument, if both) or standard input; none where it is not
    ``needed`` and nobody gives one. What is piped in is read to its end.

    Newlines that end a file or a pipe are dropped unless ``raw``. Raises `InvalidRequest` if there is none.
    """
    if prompt is None and file is None and not needed:
        return _piped()
    if file is None and (prompt == "-" or (prompt is None and not sys.stdin.isatty())):
        prompt, file = None, "-"
    if prompt is None and file is None:
        raise InvalidRequest(
            'there is no prompt: write one, as in sooner run "Why is the sky blue?", give --file, or pipe it in',
            "prompt",
        )
    text = "" if file is None else _read(file)
    text = text if raw else text.rstrip("\r\n")
    if prompt is not None:
        text = f"{prompt}\n\n{text}" if file is not None else prompt
    if not text.strip():
        raise InvalidRequest("the prompt is empty: give some text", "prompt")
    return text


def expected_text(value: str | None, draft: Sequence[str]) -> str | None:
    """The text of --expected, from its file if it begins with @. Drafters that all ignore it are pointed out."""
    from sooner.draft import parse_spec

    if value is None:
        return None
    if draft and all(parse_spec(spec)["kind"] in _BLIND for spec in draft):
        raise InvalidRequest(f"--draft {draft[0]} does not read --expected: use --draft given, or leave one out")
    text = _read(value[1:], option="--expected") if value.startswith("@") else value
    if not text:
        raise InvalidRequest("--expected is empty: give the text, @FILE, or leave it out", "expected")
    return text


_BLIND = (
    *("none", "cascade", "corpus", "head", "layerskip", "memory", "model", "ngram", "oracle", "random", "recycle"),
    *("self", "suffix", "table"),
)
"""What sooner has of drafters and their sets without `given`; of a stranger's nothing is known."""


def _piped() -> str:
    """What is piped in: nothing from a terminal, from an empty input or from one that cannot be read, as nohup's."""
    try:
        data = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    except OSError:
        return ""
    return _decoded(data, _STDIN).strip()


def _read(file: str, option: str = "--file") -> str:
    where = _STDIN if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(f"{option} {where} cannot be read ({reason}): check the path") from None
    return _decoded(data, where)


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where} is not UTF-8 text: convert it first, as with iconv -t utf-8") from None


_STDIN = "standard input"


def ask(
    text: str,
    system: str | None,
    *,
    raw: bool,
    images: Sequence[str] | None = None,
    sound: Mapping[str, Any] | None = None,
) -> str | list[dict[str, Any]]:
    """The prompt as the engine takes it: text, or messages when there is more. ``images``: where pictures lie;
    ``sound``: the part that `sound_of` makes.

    Raises `InvalidRequest` for what cannot be read, and for what --raw has no place for.
    """
    more = (("--system", system is not None), ("--image", images), ("--audio", sound))
    given = [name for name, value in more if value]
    if not given:
        return text
    if raw:
        raise InvalidRequest(f"--raw continues the text as it stands and has no place for {given[0]}: leave one out")
    head = [] if system is None else [{"role": "system", "content": system}]
    shown = [picture_part(where, "image") for where in images or ()]
    return [*head, user_message(text, [*shown, *([] if sound is None else [sound])])]


def user_message(text: str, shown: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """A user's message; what is ``shown`` besides (parts of a message) goes before the text."""
    said = [{"type": "text", "text": text}] if text else []
    return {"role": "user", "content": [*shown, *said] if shown else text}


def sound_of(audio: str | None, language: str | None, task: str | None) -> dict[str, Any] | None:
    """The part of a message with the sound of --audio, read now; None for none. Raises `InvalidRequest`."""
    if audio is not None:
        from sooner.sounds import sound_part

        return sound_part(audio, "audio", language=language, task=task)
    for name, value in (("language", language), ("task", task)):
        if value is not None:
            raise InvalidRequest(f"--{name} is about a sound: add --audio FILE, or leave it out", name)
    return None
