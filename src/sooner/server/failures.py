"""What goes wrong as OpenAI's error object: ``{"error": {message, type, param, code}}`` with its HTTP status.

Knows exceptions and statuses. Does not know what any request asks for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from sooner.errors import ContextOverflow, InvalidRequest, SoonerError, nearest
from sooner.server.schema import ChatBody, TextBody

__all__ = [
    "Refusal",
    "busy",
    "describe",
    "drained",
    "error_object",
    "loading",
    "too_large",
    "too_slow",
    "unauthorised",
    "unfinished",
]

log = logging.getLogger("sooner.server")

_STAY = {"x-should-retry": "false"}
"""Tells OpenAI's clients that the same request would fail again."""


class Refusal(HTTPException):
    """A request that the server itself refuses or gives up, with all that its error object says."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.kind = kind
        self.param = param
        self.code = code


def busy(seconds: int, *, own: bool = False) -> Refusal:
    """The queue is full, or its caller's ``own`` share of it; ``seconds`` is when to try again."""
    full = "this key has its share of the queue" if own else "the queue is full"
    message = f"{full}: try again in {seconds} s, or raise --max-waiting"
    return Refusal(429, message, kind="rate_limit_error", code="queue_full", headers={"Retry-After": str(seconds)})


def loading() -> Refusal:
    """The model is not there yet."""
    message = "the model is still loading: try again when /health answers 200"
    return Refusal(503, message, kind="server_error", code="model_loading", headers={"Retry-After": "2"})


def drained() -> Refusal:
    """The server is going down."""
    return Refusal(503, "the server is shutting down: try another one", kind="server_error", code="shutting_down")


def too_slow(seconds: float) -> Refusal:
    """The answer is not finished at its deadline."""
    message = f"the answer took longer than {seconds:g} s: ask for fewer max_tokens, or raise timeout or --timeout"
    return Refusal(504, message, kind="timeout_error", code="deadline_exceeded", headers=_STAY)


def unfinished(seconds: float) -> Refusal:
    """The body does not arrive."""
    return Refusal(408, f"the request body was not there within {seconds:g} s: send it faster", code="request_timeout")


def too_large(limit: int) -> Refusal:
    """The body exceeds the limit."""
    message = f"the request body exceeds {limit} bytes: shorten it, or raise --max-body"
    return Refusal(413, message, code="request_too_large")


def unauthorised() -> Refusal:
    """No key, or none of ours."""
    message = "a valid API key is required: send the header Authorization: Bearer KEY"
    return Refusal(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def error_object(
    message: str, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of a reply that failed."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, error object and headers of any failure; what nobody foresaw is logged and told apart."""
    if isinstance(error, Refusal):
        body = error_object(str(error.detail), error.kind, error.param, error.code)
        return error.status_code, body, dict(error.headers or {})
    if isinstance(error, InvalidRequest):
        code = "context_length_exceeded" if isinstance(error, ContextOverflow) else None
        return 400, error_object(str(error), param=error.param, code=code), {}
    if isinstance(error, RequestValidationError):
        message, param = _first(error.errors())
        return 400, error_object(message, param=param), {}
    if isinstance(error, HTTPException):
        return error.status_code, error_object(_plain(error)), dict(error.headers or {})
    if isinstance(error, SoonerError):
        return 500, error_object(str(error), "server_error"), {}
    log.error("a request failed", exc_info=error)
    return 500, error_object(f"sooner failed ({type(error).__name__}): see the server's log", "server_error"), {}


def _plain(error: HTTPException) -> str:
    known = {
        400: "the body cannot be read: send JSON in UTF-8",
        404: "there is no such path: they are listed at /openapi.json",
        405: "this path does not take that method: see /openapi.json",
    }
    return known.get(error.status_code, str(error.detail))


def _first(problems: Sequence[Any]) -> tuple[str, str | None]:
    """The first complaint about a body, and the parameter it is about.

    Among the complaints about one parameter (one per type it may have) the one that got deepest says most.
    """
    head = problems[0]
    if head["type"] == "value_error" and len(head["loc"]) == 1:
        return str(head["msg"]).removeprefix("Value error, "), None
    name = head["loc"][1] if len(head["loc"]) > 1 else None
    alike = [p for p in problems if p["loc"][1:2] == head["loc"][1:2]]
    chosen = max(alike, key=lambda p: len(p["loc"])) if alike else head
    if chosen["type"] in ("json_invalid", "missing") and (name is None or isinstance(name, int)):
        return "the body must be a JSON object, in UTF-8 and with Content-Type: application/json", None
    if not isinstance(name, str):
        return "the body must be a JSON object with Content-Type: application/json", None
    param = _path(chosen["loc"][1:])
    if chosen["type"] == "extra_forbidden":
        hint = nearest(name, {*ChatBody.model_fields, *TextBody.model_fields}) if param == name else ""
        return f"{param} is not supported{hint}: leave it out", param
    message = str(chosen["msg"]).removeprefix("Value error, ")
    return (message if message.startswith(param) else f"{param}: {message[:1].lower()}{message[1:]}"), param


def _path(loc: Sequence[str | int]) -> str:
    """Where in the body, as in ``messages[0].content``; names of types that were tried are left out."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and not part[0].isupper() and part not in ("str", "int", "float", "bool", "list"):
            path += f".{part}" if path else part
    return path
