"""The HTTP interface: paths, and what each answers.

Knows FastAPI. Does not know how requests are read or answers written.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import fastapi
from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

import sooner
from sooner.errors import SoonerError
from sooner.server.failures import describe
from sooner.server.gate import Gate
from sooner.server.otel import Value, span
from sooner.server.page import routes as page_routes
from sooner.server.reading import Asked
from sooner.server.replies import ChatReply, Reply, TextReply
from sooner.server.schema import ChatBody, CommonBody, TextBody
from sooner.server.sending import Answer, Stream, Whole
from sooner.server.service import Service

__all__ = ["create_app"]

log = logging.getLogger("sooner.server")


class _Error(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """What every refusal and failure looks like."""

    error: _Error


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a path says no, for the OpenAPI document; what is not listed looks the same."""
    what = {
        400: "A parameter that cannot be honoured; `param` names it",
        401: "No valid API key",
        403: "The wrong Host",
        404: "No such model",
        408: "The body did not arrive in time",
        413: "The body is too large",
        429: "The queue is full; `Retry-After` says when to come back",
        500: "The model failed",
        503: "The model is still loading, or the server is shutting down",
        504: "The deadline passed",
    }
    listed: dict[int | str, dict[str, Any]] = {s: {"model": ErrorBody, "description": what[s]} for s in statuses}
    return {**listed, "default": {"model": ErrorBody, "description": "Any other failure"}}


def create_app(service: Service) -> FastAPI:
    """The application of one server. Its lifespan loads the model and ends the engine."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="sooner",
        version=sooner.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ours are in `otel`, and hold no text
    )
    app.add_middleware(Gate, settings=service.settings, takes_files=lambda: service.takes_files)
    for kind in (RequestValidationError, HTTPException, SoonerError, Exception):
        app.add_exception_handler(kind, _failed)
    _add_answers(app, service)
    _add_facts(app, service)
    app.router.routes.extend(page_routes())
    return app


async def _failed(request: fastapi.Request, error: Exception) -> Response:
    status, body, headers = describe(error)
    return JSONResponse(body, status, headers)


def _add_answers(app: FastAPI, service: Service) -> None:
    key = Depends(HTTPBearer(auto_error=False, description="One of the server's API keys, if it has any"))
    answer = {"description": "The answer; chunks of it with `stream`", "content": {"text/event-stream": {}}}
    responses = {200: answer, **_refusals(400, 401, 403, 404, 408, 413, 429, 500, 503, 504)}
    options: dict[str, Any] = {"responses": responses, "dependencies": [key], "response_model": None}

    @app.post("/v1/chat/completions", summary="Answer a conversation", **options)
    async def chat(body: ChatBody, request: fastapi.Request) -> Response:
        ready = service.ready
        asked = await ready.read(ready.reader.chat, body, request.state.salt)
        options = _reply_options(body)
        reply = ChatReply(ready.engine.codec, ready.engine.name, ready.fingerprint, calls=asked.calls, **options)
        return await _answer(service, body, request, asked, reply)

    @app.post("/v1/completions", summary="Continue a text", **options)
    async def complete(body: TextBody, request: fastapi.Request) -> Response:
        ready = service.ready
        asked = await ready.read(ready.reader.text, body, request.state.salt)
        reply = TextReply(ready.engine.codec, ready.engine.name, ready.fingerprint, **_reply_options(body))
        return await _answer(service, body, request, asked, reply)


def _reply_options(body: CommonBody) -> dict[str, Any]:
    return {"n": body.n, "usage": _with_usage(body), "pieces": body.sooner_pieces}


def _with_usage(body: CommonBody) -> bool:
    return body.stream_options is not None and body.stream_options.include_usage


async def _answer(service: Service, body: CommonBody, request: fastapi.Request, asked: Asked, reply: Reply) -> Response:
    ready = service.ready
    if service.settings.log_prompts:
        log.info("%s asks %s", reply.id, body.model_dump_json(exclude_unset=True))
    begun, caller = request.state.begun, request.state.salt
    job = await ready.driver.submit(
        asked.requests, begun, asked.drafter, caller=caller, timeout_s=body.timeout, name=reply.id
    )
    name = "chat" if isinstance(body, ChatBody) else "text_completion"
    facts: dict[str, Value] = {
        "gen_ai.request.model": ready.engine.name,
        "gen_ai.request.temperature": body.temperature,
    }
    traced = partial(span, reply.id, facts, name=name, headers=request.headers)
    answer = Answer(ready.driver, job, reply, ready.warning, traced)
    if not body.stream:
        return Whole(answer, write_timeout_s=service.settings.write_timeout_s)
    return Stream(answer, usage=_with_usage(body), write_timeout_s=service.settings.write_timeout_s)


def _add_facts(app: FastAPI, service: Service) -> None:
    key = Depends(HTTPBearer(auto_error=False))
    guarded: dict[str, Any] = {"dependencies": [key], "responses": _refusals(401, 403, 404, 503)}

    @app.get("/v1/models", **guarded)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(service)]}

    @app.get("/v1/models/{id:path}", **guarded)
    async def model(id: str) -> dict[str, Any]:
        service.ready.reader.check_model(id)
        return _model(service)

    @app.get("/health", responses={503: {"description": "Not ready: `status` says why"}}, response_model=None)
    async def health() -> Response:
        status = 200 if service.status == "ready" else 503
        return JSONResponse({"status": "ok" if status == 200 else service.status}, status)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": sooner.__version__}

    @app.get("/metrics", response_class=PlainTextResponse, **guarded)
    async def metrics() -> Response:
        return PlainTextResponse(service.ready.metrics.render(), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})


def _model(service: Service) -> dict[str, Any]:
    ready = service.ready
    return {
        "id": ready.engine.name,
        "object": "model",
        "created": ready.created,
        "owned_by": "sooner",
        "max_model_len": ready.engine.target.context,
    }
