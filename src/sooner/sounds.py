"""Sound in chat messages, read into samples, and the token that stands for one in a text.

Knows message parts and where sounds lie. Does not know sound files (`waves`), models or templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sooner.errors import InvalidRequest
from sooner.media import MediaToken, decode, read_media
from sooner.waves import Sound, read_sound

__all__ = ["Dictation", "SoundToken", "dictation", "is_sound", "sound_part"]


class SoundToken(MediaToken):
    """The one token that stands for a sound in a text. It holds what a target ``heard`` in it."""

    heard: Any

    def __new__(cls, id: int, heard: Any) -> SoundToken:
        """Token ``id`` of what was ``heard``."""
        token = super().__new__(cls, id)
        token.heard = heard
        return token


@dataclass(frozen=True, slots=True)
class Dictation:
    """What a model is asked to write down. ``language`` and ``task``: as the caller says, or None. ``before``: what was
    said before it, as text."""

    sound: Sound
    language: str | None = None
    task: str | None = None
    before: str = ""


def is_sound(part: Any) -> bool:
    """Whether a part of a message is a sound."""
    return isinstance(part, Mapping) and part.get("type") in ("audio", "input_audio")


def sound_part(where: str, param: str, *, language: str | None = None, task: str | None = None) -> dict[str, Any]:
    """The part of a message with the sound at a path, a ``file:`` URL or in a ``data:`` URL, which is read now.

    Raises `InvalidRequest` naming ``param``.
    """
    sound = read_sound(read_media(where, param, "sound"), param)
    told = {name: value for name, value in (("language", language), ("task", task)) if value is not None}
    return {"type": "audio", "audio": {"array": sound.samples, "sampling_rate": sound.rate}, **told}


def dictation(messages: Sequence[Mapping[str, Any]]) -> Dictation:
    """What ``messages``, one of the user's with one sound and maybe text, ask for.

    A sound is ``{"type": "audio", "audio": ...}`` (also ``path`` or ``url``): where it lies, the bytes of its file, or
    ``{"array": samples, "sampling_rate": rate}``; ``language`` and ``task`` may stand beside it. Or it is OpenAI's
    ``{"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}``. Raises `InvalidRequest`.
    """
    if len(messages) != 1 or messages[0].get("role") != "user":
        raise InvalidRequest(
            "this model writes down what it hears and follows no instructions: give one user message with a sound",
            "messages",
        )
    where = "messages[0].content"
    content = messages[0].get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    sounds = [part for part in parts if is_sound(part)]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(sounds) + len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{where} may hold one sound and text; leave out the rest", where)
    if not sounds:
        raise InvalidRequest(
            "this model writes down what it hears, and there is no sound: give one in the user's message, as in "
            '{"type": "audio", "audio": "talk.wav"}, or --audio talk.wav on the command line',
            where,
        )
    if len(sounds) > 1:
        raise InvalidRequest(f"there are {len(sounds)} sounds and the model hears one: ask for each by itself", where)
    language, task = (_word(sounds[0], name, where) for name in ("language", "task"))
    return Dictation(_sound(sounds[0], where), language, task, " ".join(map(str, texts)).strip())


def _sound(part: Mapping[str, Any], where: str) -> Sound:
    value = next((part[key] for key in ("audio", "path", "url", "input_audio") if part.get(key) is not None), None)
    if isinstance(value, Mapping) and "array" in value:
        return _samples(value, where)
    if part["type"] == "input_audio":
        data = value.get("data") if isinstance(value, Mapping) else None
        value = decode(data, where, "sound") if isinstance(data, str) else None
    if isinstance(value, str | Path) and str(value):
        value = read_media(str(value), where, "sound")
    if not isinstance(value, bytes):
        raise InvalidRequest(
            f"{where} has a sound without samples: give its path, a data URL, the bytes of its file, or "
            '{"array": samples, "sampling_rate": rate}',
            where,
        )
    return read_sound(value, where)


def _samples(value: Mapping[str, Any], where: str) -> Sound:
    """Samples from Python, as datasets have them."""
    rate = value.get("sampling_rate")
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer):
        raise InvalidRequest("an array of samples needs its sampling_rate, a whole number a second: give it", where)
    try:
        samples = np.asarray(value["array"])
    except (TypeError, ValueError):
        samples = np.empty((), dtype=object)
    if samples.ndim != 1 or samples.dtype.kind != "f":
        raise InvalidRequest(
            "the samples of a sound must be floats of one channel, [n], in [-1, 1]: mix and scale them", where
        )
    return Sound(samples.astype(np.float32), int(rate)).checked(where)


def _word(part: Mapping[str, Any], name: str, where: str) -> str | None:
    value = part.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidRequest(f"{name} must be a word such as {'en' if name == 'language' else 'translate'!r}", where)
    return value
