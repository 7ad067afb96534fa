"""The door of a deployment before scripted replicas: what is asked again, what is said, and who is told to stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]  # Ray's own
pytest.importorskip("ray.serve", exc_type=ImportError)  # the plain suite collects this file, too

from ray.exceptions import ActorDiedError, RayActorError  # noqa: E402  # Ray first
from ray.serve.exceptions import BackPressureError  # noqa: E402

from sooner.integrations import ray_ingress  # noqa: E402
from sooner.integrations.ray_ingress import Forward  # noqa: E402
from sooner.server import Settings  # noqa: E402

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
END = {"type": "http.response.body", "body": b"", "more_body": False}
BODY = json.dumps({"messages": [{"role": "user", "content": "abc"}]}).encode()


def chunk(text: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": True}


class Response:
    """A replica's answer as scripted: messages, then an exception or the end; "wait" never ends."""

    def __init__(self, script: Sequence[Any]) -> None:
        self._script = script
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[Any]:
        for entry in self._script:
            if entry == "wait":
                await asyncio.Event().wait()
            if isinstance(entry, BaseException):
                raise entry
            yield entry

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Replicas that answer one script after the other."""

    def __init__(self, *scripts: Sequence[Any]) -> None:
        self.responses = [Response(script) for script in scripts]
        self.keys: list[str] = []
        self._next = iter(self.responses)

    def options(self, *, session_id: str | None = None, **others: Any) -> Handle:
        if session_id is not None:
            self.keys.append(session_id)
        return self

    def remote(self, head: dict[str, Any], body: bytes) -> Response:
        assert body in (BODY, b"")
        return next(self._next)


def ask(handle: Any, *, leaves: float | None = None, method: str = "POST") -> tuple[int, bytes]:
    """(Status, body) of an answer, 0 if there was none; the caller ``leaves`` after so many seconds."""

    async def asking() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        unread = [{"type": "http.request", "body": BODY if method == "POST" else b"", "more_body": False}]

        async def receive() -> Any:
            if unread:
                return unread.pop()
            await (asyncio.Event().wait() if leaves is None else asyncio.sleep(leaves))
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        scope = {"type": "http", "method": method, "path": "/v1/chat/completions", "headers": []}
        await Forward(handle, Settings())(scope, receive, send)
        return sent

    sent = asyncio.run(asking())
    assert [message["type"] for message in sent[1:]] == ["http.response.body"] * (len(sent) - 1)
    if sent:
        assert not sent[-1].get("more_body", False)
    return (sent[0]["status"] if sent else 0), b"".join(message.get("body", b"") for message in sent)


def code(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


def test_an_answer_is_passed_on_as_it_is() -> None:
    handle = Handle([START, chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n"), END])
    assert ask(handle) == (200, b"data: 1\n\ndata: 2\n\n")
    assert [len(key) for key in handle.keys] == [32]
    assert not handle.responses[0].cancelled


@pytest.mark.parametrize("lost", [ActorDiedError(), RayActorError(), asyncio.CancelledError()])
@pytest.mark.parametrize("before", [[], [START]])
def test_what_has_not_begun_is_asked_of_another(lost: BaseException, before: list[Any]) -> None:
    handle = Handle([*before, lost], [START, chunk(b"data: 1\n\n"), END])
    assert ask(handle) == (200, b"data: 1\n\n")
    assert len(set(handle.keys)) == 1


def test_what_has_begun_ends_with_an_error_event() -> None:
    handle = Handle([START, chunk(b"data: 1\n\n"), ActorDiedError()], [START, chunk(b"again"), END])
    status, body = ask(handle)
    first, event, done = body.split(b"\n\n")[:3]
    assert (status, first, done) == (200, b"data: 1", b"data: [DONE]")
    assert event.startswith(b"event: error\ndata: ")
    assert code(event.split(b"data: ")[1]) == "replica_lost"


def test_three_deaths_are_a_refusal() -> None:
    status, body = ask(Handle(*[[ActorDiedError()]] * 3))
    assert (status, code(body)) == (503, "replica_lost")


def test_a_replica_out_of_memory_is_called_that() -> None:
    dead = RayActorError(error_msg="The worker was killed due to the node running low on memory (OOM)")
    status, body = ask(Handle(*[[dead]] * 3))
    assert (status, code(body)) == (503, "replica_out_of_memory")
    assert b"--max-context" in body


def test_a_full_queue_and_a_fault_are_not_tried_again() -> None:
    status, body = ask(Handle([BackPressureError(5, 5)]))
    assert (status, code(body)) == (429, "queue_full")
    assert ask(Handle([KeyError("x")]))[0] == 500


def test_when_the_caller_leaves_the_replica_is_told() -> None:
    handle = Handle([START, chunk(b"data: 1\n\n"), "wait"])
    with pytest.raises(AssertionError):  # nothing ends an answer that nobody reads
        ask(handle, leaves=0.05)
    assert handle.responses[0].cancelled


def test_without_a_replica_health_says_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_ingress, "_LOOK_S", 0.05)
    handle = Handle(["wait"])
    status, body = ask(handle, method="GET")
    assert (status, code(body)) == (503, "model_loading")
    assert handle.responses[0].cancelled
    assert handle.keys == [""]
