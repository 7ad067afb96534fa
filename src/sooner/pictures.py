"""Pictures in chat messages, read into bytes, and the tokens that stand for one in a text.

Knows message parts, files and data URLs. Does not know image formats, models or templates, and fetches nothing.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sooner.errors import InvalidRequest
from sooner.media import MediaToken, file_of, read_file, read_media, read_url, scheme_of

__all__ = ["PictureToken", "picture_part", "read_local", "read_served", "take_pictures"]


class PictureToken(MediaToken):
    """One of the tokens that stand for a picture in a text. It holds its ``picture``; ``place`` counts them from 0."""

    picture: Any
    place: int

    def __new__(cls, id: int, picture: Any, place: int) -> PictureToken:
        """Token ``id`` of ``picture`` (whatever the target made of it)."""
        token = super().__new__(cls, id)
        token.picture, token.place = picture, place
        return token


def picture_part(where: str, param: str) -> dict[str, Any]:
    """The part of a message, as OpenAI has it, that shows the picture at a path, a ``file:`` URL or in a ``data:`` URL.

    It is read now and holds its bytes, so that it can be saved or sent elsewhere. Raises `InvalidRequest`.
    """
    data = base64.b64encode(read_local(where, param)).decode()
    kind = None if where.startswith("data:") else mimetypes.guess_type(where)[0]
    url = f"data:{kind or 'image/*'};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}}


def take_pictures(
    messages: Sequence[Mapping[str, Any]], read: Callable[[str, str], bytes] | None = None
) -> tuple[list[dict[str, Any]], list[bytes]]:
    """``messages`` with bare ``{"type": "image"}`` parts, and what those showed, in order.

    A picture is ``{"type": "image", "image": ...}`` (also ``path`` or ``url``; bytes or where it lies) or OpenAI's
    ``{"type": "image_url", "image_url": {"url": ...}}``. ``read(where, param)`` gets a location's bytes (default
    `read_local`). Raises `InvalidRequest`.
    """
    read = read or read_local
    found: list[bytes] = []
    turns = []
    for i, message in enumerate(messages):
        turn: Any = dict(message) if isinstance(message, Mapping) else message  # what is none is refused by templates
        if isinstance(turn, dict) and isinstance(content := turn.get("content"), list):
            turn["content"] = [_taken(part, f"messages[{i}].content", read, found) for part in content]
        turns.append(turn)
    return turns, found


def _taken(part: Any, where: str, read: Callable[[str, str], bytes], found: list[bytes]) -> Any:
    if not isinstance(part, Mapping) or part.get("type") not in ("image", "image_url"):
        return part
    value = next((part[key] for key in ("image", "path", "url", "image_url") if part.get(key) is not None), None)
    if isinstance(value, Mapping):
        value = value.get("url")
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, bytes | str) or not value:
        raise InvalidRequest(f"{where} has an image without a picture: give its path, a data URL, or its bytes", where)
    found.append(value if isinstance(value, bytes) else read(value, where))
    return {"type": "image"}


def read_local(where: str, param: str) -> bytes:
    """The bytes at a path, a ``file:`` URL or in a ``data:`` URL. Raises `InvalidRequest`."""
    return read_media(where, param, "picture")


def read_served(where: str, param: str, folder: Path | None = None) -> bytes:
    """As `read_local`, for callers elsewhere: data URLs, and ``file:`` URLs of what lies in ``folder``, if any.

    Raises `InvalidRequest`, which does not tell whether a file outside is there.
    """
    scheme = scheme_of(where)
    if scheme == "data":
        return read_url(where, param, "picture")
    if scheme in ("http", "https"):
        raise InvalidRequest("this server fetches no pictures: send it as a base64 data URL", param)
    if scheme != "file" or folder is None:
        raise InvalidRequest("this server reads no files for callers: send the picture as a base64 data URL", param)
    path = file_of(where, param)
    if not path.is_relative_to(folder.resolve()):
        raise InvalidRequest("this server reads pictures from one folder, and the URL names another place", param)
    return read_file(path, param, "picture")
