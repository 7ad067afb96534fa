"""One OpenTelemetry span a request. Knows the span's name and its life; does not know what the figures mean.

Without the extra `otel`, or with no endpoint configured, everything here does nothing. Where spans go is said by the
standard variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER``, ...).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["Span", "Value", "configure", "span"]

Value = str | bool | int | float | Sequence[str]
"""What an attribute can be."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Span(Protocol):
    """What a request can say about itself while its span is open."""

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes, such as the figures known at the end."""
        ...


class _Silent:
    """The span of a server without traces."""

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Forget them."""


class _Open:
    """A span that is being recorded."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Add attributes; None is left out."""
        self._span.set_attributes({key: value for key, value in attributes.items() if value is not None})


def configure(version: str) -> str | None:
    """Send spans where the environment says; once, when the server starts.

    Returns a line for the log: where they go, or why they go nowhere although an endpoint is set; None if none is.
    A tracer provider that the program has installed by itself is left in place.
    """
    endpoint = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        return f'traces are off although {endpoint} is set: pip install "sooner[otel]"'
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "sooner"}
        provider = TracerProvider(resource=Resource.create({**named, "service.version": version}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    return f"traces go to {endpoint}"


@contextmanager
def span(
    request_id: str,
    attributes: Mapping[str, Value],
    *,
    name: str = "chat",
    headers: Mapping[str, str] | None = None,
) -> Iterator[Span]:
    """A request's span, from its acceptance to its last byte. An exception ends it as an error and passes on.

    ``name``: the operation, as in the GenAI conventions (chat, text_completion). ``headers``: the request's, for the
    caller's ``traceparent``. The span never becomes current: a stream may be driven from any task or thread.
    """
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        yield _Silent()
        return
    found = trace.get_tracer("sooner").start_span(
        name,
        context=propagate.extract(headers or {}),
        kind=trace.SpanKind.SERVER,
        attributes={"gen_ai.response.id": request_id, "gen_ai.operation.name": name, **attributes},
    )
    try:
        yield _Open(found)
    except BaseException as error:
        if isinstance(error, Exception):
            found.record_exception(error)
        found.set_attribute("error.type", type(error).__name__)
        found.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
        raise
    finally:
        found.end()
