"""A server elsewhere that speaks OpenAI's API: its address, its key, and how a call fails. Knows HTTP, and no model."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from sooner.errors import InvalidRequest, SoonerError, one_line

__all__ = ["Endpoint", "RemoteError", "said"]


class RemoteError(SoonerError):
    """The server refused, failed or cannot be reached. ``status``: of HTTP, where there was an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Endpoint:
    """One server. ``url`` may end in /v1; ``place`` is its host and port. Every call has a connection of its own, so it
    may be used from several threads. Raises `InvalidRequest` for an address that is none."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 600.0) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is no number, a bracket that does not close
            usable = False
        if not usable:
            raise InvalidRequest(f"--url {url} is no address: write it as http://127.0.0.1:8000", "url")
        self._secure = parts.scheme == "https"
        self._timeout = timeout
        self.place = parts.netloc.rpartition("@")[2]
        self._base = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    @contextmanager
    def call(self, method: str, path: str, body: str | None = None) -> Iterator[http.client.HTTPResponse]:
        """The reply to a request of a ``path`` below /v1, to be read. Raises `RemoteError` unless it is 200."""
        make = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        with closing(make(self.place, timeout=self._timeout)) as connection:
            try:
                connection.request(method, self._base + path, body, self._headers)
                reply = connection.getresponse()
                text = reply.read() if reply.status != 200 else b""
            except (OSError, http.client.HTTPException) as error:
                reason = f"{self.place} does not answer ({one_line(error)})"
                raise RemoteError(f"{reason}: is sooner serve running?") from error
            if reply.status != 200:
                raise RemoteError(f"{self.place} refuses ({reply.status}): {_refusal(text)}", reply.status)
            with reply:
                yield reply

    def ask(self, path: str, body: Any = None) -> Any:
        """The JSON reply to a GET, or to a POST of ``body``. Raises `RemoteError`."""
        sent = None if body is None else json.dumps(body)
        try:
            with self.call("GET" if body is None else "POST", path, sent) as reply:
                return json.loads(reply.read())
        except ValueError as error:
            raise RemoteError(f"{self.place} answers {path} with something else than JSON: check --url") from error
        except (OSError, http.client.HTTPException) as error:
            raise RemoteError(f"{self.place} went away ({one_line(error)}): try again") from error


def said(data: Any) -> str:
    """The message of OpenAI's error object, on one line."""
    return " ".join(str(data["error"]["message"]).split())


def _refusal(text: bytes) -> str:
    try:
        return said(json.loads(text))
    except (ValueError, KeyError, TypeError):
        return "it says nothing that OpenAI's API would say; check --url"
