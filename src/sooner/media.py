"""What stands in a text for a picture or a sound, and how a caller's files of them are read.

Knows token ids, files and data URLs. Does not know what is in a file, nor models, and fetches nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sooner.errors import InvalidRequest

__all__ = [
    "MOST_BYTES",
    "MediaToken",
    "decode",
    "file_of",
    "read_file",
    "read_media",
    "read_url",
    "scheme_of",
    "text_of",
]

MOST_BYTES = 32 << 20
"""The largest file that is read."""


class MediaToken(int):
    """A token that stands for what is no text: an id beyond the vocabulary, equal for equal things only, so that cached
    prefixes are found as ever. It holds what was made of them, which lives as long as a text does.

    An id that a caller writes is a plain integer, never one of these.
    """


def text_of(tokens: Sequence[int]) -> list[int]:
    """``tokens`` without those of pictures and sounds: what whoever knows only text is shown."""
    return [token for token in tokens if not isinstance(token, MediaToken)]


def read_media(where: str, param: str, what: str) -> bytes:
    """The bytes of ``what`` (a word for messages) at a path, a ``file:`` URL or in a ``data:`` URL.

    Raises `InvalidRequest` naming ``param``.
    """
    scheme = scheme_of(where)
    if scheme == "data":
        return read_url(where, param, what)
    if scheme in ("http", "https"):
        raise InvalidRequest(f"sooner fetches no {what}s: save {where[:100]} and give its path", param)
    return read_file(file_of(where, param) if scheme == "file" else Path(where), param, what)


def scheme_of(where: str) -> str:
    """The scheme of a URL, empty for a path. Not by `urlsplit`, which remembers the URLs that it was given: a ``data:``
    one may have megabytes."""
    scheme, colon, _ = where[:12].partition(":")
    return scheme.lower() if colon else ""


def file_of(url: str, param: str) -> Path:
    """The path that a ``file:`` URL names, resolved. Raises `InvalidRequest`."""
    try:
        return Path(unquote(urlsplit(url).path)).resolve()
    except (OSError, RuntimeError, ValueError):
        raise InvalidRequest("the URL names no file: check it", param) from None


def read_file(path: Path, param: str, what: str) -> bytes:
    """As `read_media`, of a path."""
    try:
        if not path.is_file():
            raise InvalidRequest(f"there is no {what} {path}: check the path", param)
        if path.stat().st_size > MOST_BYTES:
            raise InvalidRequest(f"{path} has more than {MOST_BYTES >> 20} MB: make the {what} smaller", param)
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(f"the {what} {path} cannot be read ({reason}): check the path", param) from None


def read_url(url: str, param: str, what: str) -> bytes:
    """As `read_media`, of a ``data:`` URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidRequest(f"a {what}'s data URL must be data:...;base64,...", param)
    return decode(data, param, what)


def decode(data: str, param: str, what: str) -> bytes:
    """As `read_media`, of base64."""
    if len(data) > MOST_BYTES * 4 // 3 + 4:
        raise InvalidRequest(f"the {what} has more than {MOST_BYTES >> 20} MB: make it smaller", param)
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"the {what} is no valid base64: encode its bytes again", param) from None
