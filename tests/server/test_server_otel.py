"""One span a request: attributes, ends, errors, the caller's trace; nothing at all without the extra."""

from __future__ import annotations

import asyncio
import contextvars
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from serving import MESSAGES, client, serving

from sooner.server import otel

INSTALLED = importlib.util.find_spec("opentelemetry.sdk") is not None
with_sdk = pytest.mark.skipif(not INSTALLED, reason="the extra `otel` is not installed")
ENDPOINT = "http://127.0.0.1:9"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Finished spans, recorded by a provider that only this test sees."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter.get_finished_spans
    provider.shutdown()


def test_without_the_extra_a_span_is_nothing_and_an_endpoint_is_missed_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with otel.span("chatcmpl-1", {"gen_ai.request.model": "m"}) as span:
        span.set({"gen_ai.usage.output_tokens": 3})
    with pytest.raises(ValueError, match="through"), otel.span("chatcmpl-2", {}):
        raise ValueError("it passes through")
    assert otel.configure("1.0") is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", ENDPOINT)
    assert otel.configure("1.0") == f'traces are off although {ENDPOINT} is set: pip install "sooner[otel]"'
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert otel.configure("1.0") is None


@with_sdk
def test_a_span_has_what_was_said_of_it_and_ends_once(spans: Any) -> None:
    with otel.span("chatcmpl-1", {"gen_ai.request.model": "m", "gen_ai.request.temperature": 0.0}) as span:
        assert spans() == ()
        span.set({"gen_ai.usage.output_tokens": 3, "gen_ai.response.finish_reasons": ("stop",)})
    (found,) = spans()
    assert found.name == "chat"
    assert found.kind.name == "SERVER"
    assert found.attributes == {
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.0,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert found.status.status_code.name == "UNSET"
    assert found.end_time >= found.start_time


@with_sdk
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_a_failure_ends_the_span_and_passes_on(spans: Any, error: BaseException) -> None:
    with pytest.raises(type(error)), otel.span("cmpl-1", {}, name="text_completion"):
        raise error
    (found,) = spans()
    assert found.status.status_code.name == "ERROR"
    assert found.attributes["error.type"] == type(error).__name__
    assert len(found.events) == isinstance(error, Exception), "that a caller left is no exception of ours"


@with_sdk
def test_the_callers_trace_goes_on(spans: Any) -> None:
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with otel.span("chatcmpl-1", {}, headers={"traceparent": f"00-{trace_id}-{parent}-01"}):
        pass
    (found,) = spans()
    assert f"{found.context.trace_id:032x}" == trace_id
    assert f"{found.parent.span_id:016x}" == parent


@with_sdk
def test_a_span_may_begin_and_end_in_different_contexts(spans: Any) -> None:
    life = otel.span("chatcmpl-1", {})
    contextvars.copy_context().run(life.__enter__)
    contextvars.copy_context().run(life.__exit__, None, None, None)
    assert len(spans()) == 1


@with_sdk
def test_a_request_is_one_span_whatever_the_framework_would_add(spans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace

    provider: Any = getattr(trace.get_tracer, "__self__", None)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    async def ask() -> None:
        async with serving() as (app, _), client(app) as api:
            await api.chat.completions.create(model="toy", messages=MESSAGES, seed=3, max_tokens=24)

    asyncio.run(ask())
    (found,) = spans()
    assert found.attributes["gen_ai.request.model"] == "toy"
    assert found.attributes["gen_ai.usage.output_tokens"] > 1


@with_sdk
def test_spans_go_to_the_endpoint_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace

    installed: list[Any] = []
    monkeypatch.setattr(trace, "set_tracer_provider", installed.append)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", ENDPOINT)
    assert otel.configure("1.2.3") == f"traces go to {ENDPOINT}"
    (provider,) = installed
    assert provider.resource.attributes["service.name"] == "sooner"
    assert provider.resource.attributes["service.version"] == "1.2.3"
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    assert otel.configure("1.2.3") == f"traces go to {ENDPOINT}"
    assert len(installed) == 1, "a provider that is there stays"
    provider.shutdown()
