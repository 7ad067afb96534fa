"""The chat page at ``/`` and the viewer of traces at ``/viewer``: files, read once, with headers that keep a browser to
them.

Knows files and headers. Does not know the API that the page talks to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import PurePosixPath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sooner.trace import viewer

__all__ = ["HEADERS", "Asset", "assets", "routes"]

HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Sent with every file: nothing from elsewhere is loaded, and no text of a model can become a script."""

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of a page: its bytes, media type, entity tag and headers."""

    body: bytes
    media_type: str
    etag: str
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)


def assets() -> dict[str, Asset]:
    """The page's files by path: ``/`` and ``/static/...``. They hold no secret and need no key."""
    found = {}
    for file in files("sooner.server").joinpath("static").iterdir():
        kind = _TYPES.get(PurePosixPath(file.name).suffix)
        if kind is not None:
            body = file.read_bytes()
            found["/" if file.name == "index.html" else f"/static/{file.name}"] = Asset(body, kind, _tag(body))
    return found


def _viewer() -> Asset:
    """The viewer is one file whose policy names its script and style by their hashes."""
    body = viewer.page().encode()
    policy = f"{viewer.policy()}; form-action 'none'; frame-ancestors 'none'"
    return Asset(body, _TYPES[".html"], _tag(body), {**HEADERS, "content-security-policy": policy})


def _tag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:16]}"'


def routes() -> list[Route]:
    """Both pages as routes for a Starlette or FastAPI application: ``app.router.routes.extend(routes())``."""
    found = {**assets(), "/viewer": _viewer()}
    return [Route(path, partial(_send, asset), methods=["GET"], name=path) for path, asset in found.items()]


async def _send(asset: Asset, request: Request) -> Response:
    headers = {**asset.headers, "etag": asset.etag}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)
