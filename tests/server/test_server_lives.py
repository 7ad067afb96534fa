"""The lives of requests on a server: callers who leave, who are slow, who come too early, too late or too many."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from fastapi import FastAPI
from serving import MESSAGES, client, raw, serving, toy_engine

from sooner.errors import ModelNotFound
from sooner.protocols import Context
from sooner.server import Service, Settings
from sooner.targets.toy import ToyTarget
from sooner.types import Draft, Rows, Work
from test_engine_laws import check_free
from toy import TreeDrafter, V

BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 400, "ignore_eos": True, "seed": 3, "temperature": 0.8}


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


class Slow(ToyTarget):
    """A toy whose passes take ``pause_s``, and fail at pass number ``fails``; from the tenth on they wait until there
    is a file at ``gate``."""

    def __init__(self, pause_s: float = 0.002, fails: int = 0, gate: str = "", **options: Any) -> None:
        super().__init__(V, **options)
        self.passes = 0
        self._pause_s = pause_s
        self._fails = fails
        self._gate = gate

    def score(self, works: Sequence[Work]) -> list[Rows]:
        self.passes += 1
        if self.passes == self._fails:
            raise RuntimeError("the device is on fire")
        while self._gate and self.passes >= 10 and not os.path.exists(self._gate):
            time.sleep(0.002)
        time.sleep(self._pause_s)
        return super().score(works)


class Caller:
    """An ASGI caller who takes ``most`` messages of a stream and then hangs up, or stops reading."""

    def __init__(self, app: FastAPI, body: dict[str, Any], most: int = 10**9, *, stalls: bool = False) -> None:
        self._app = app
        self._body: bytes | None = json.dumps(body).encode()
        self._most = most
        self._stalls = stalls
        self._gone = asyncio.Event()
        self.messages: list[Any] = []

    async def call(self) -> None:
        headers = [(b"content-type", b"application/json"), (b"host", b"test")]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"", "query_string": b""}
        more = {"headers": headers, "http_version": "1.1", "asgi": {"version": "3.0"}, "scheme": "http", "client": None}
        await self._app(scope | more | {"root_path": "", "server": None, "state": {}}, self._receive, self._send)

    async def _receive(self) -> Any:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.append(message)
        if len(self.messages) >= self._most:
            if self._stalls:
                await asyncio.sleep(3600)
            self._gone.set()


async def settled(service: Service) -> None:
    """Wait until nothing runs; then all is free."""
    driver = service.ready.driver
    while driver.running or driver.waiting or driver._choices:
        await asyncio.sleep(0.001)
    check_free(service.ready.engine)
    assert not service.ready.switch._assigned


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_who_leaves_ends_the_request_within_one_step(stream: bool) -> None:
    async def test() -> None:
        target = Slow(0.005)
        async with serving(toy_engine(target)) as (app, service):
            driver, engine = service.ready.driver, service.ready.engine
            neighbour = await driver.submit([engine.request("abc", seed=1, ignore_eos=True)], time.perf_counter())
            await neighbour.next()
            caller = Caller(app, BODY | {"stream": stream}, most=4)
            task = asyncio.create_task(caller.call())
            if stream:
                await caller._gone.wait()
            else:
                while service.ready.driver.running != 2:
                    await asyncio.sleep(0.001)
                caller._gone.set()
            before = target.passes
            await task
            while service.ready.driver.running > 1:
                await asyncio.sleep(0.0005)
            assert target.passes - before <= 2  # the one that ran when the caller left, and one to see it
            service.ready.driver.cancel(neighbour)
            await settled(service)

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_a_reader_who_takes_nothing_is_let_go(stream: bool) -> None:
    async def test() -> None:
        async with serving(toy_engine(Slow()), Settings(write_timeout_s=0.05)) as (app, service):
            caller = Caller(app, BODY | {"stream": stream, "max_tokens": 60}, most=3 if stream else 1, stalls=True)
            await caller.call()
            if stream:
                assert caller.messages[-1].get("more_body")  # unfinished, so that the reader can tell
            else:
                assert [message["type"] for message in caller.messages] == ["http.response.start"]
            await settled(service)

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_the_deadline_is_told_and_frees_the_place(stream: bool) -> None:
    async def test() -> None:
        async with serving(toy_engine(Slow(0.005)), Settings(timeout_s=0.5)) as (app, service), raw(app) as http:
            reply = await http.post("/v1/chat/completions", json=BODY | {"stream": stream})
            if stream:
                events = reply.text.strip().split("\n\n")
                assert len(events) > 3
                assert events[-2].startswith("event: error\ndata: ")
                error = json.loads(events[-2].partition("data: ")[2])["error"]
                assert events[-1] == "data: [DONE]"
            else:
                assert (reply.status_code, reply.headers["x-should-retry"]) == (504, "false")
                error = reply.json()["error"]
            assert error["code"] == "deadline_exceeded"
            await settled(service)

    run(test())


def test_a_full_queue_says_when_to_come_back() -> None:
    async def test() -> None:
        settings = Settings(max_running=2, max_waiting=2)
        async with serving(toy_engine(Slow(), max_running=2), settings) as (app, service), raw(app) as http:
            running = [asyncio.create_task(Caller(app, BODY | {"max_tokens": 60}).call()) for _ in range(4)]
            while service.ready.driver._choices < 4:
                await asyncio.sleep(0.001)
            never = await http.post("/v1/chat/completions", json=BODY | {"n": 5})
            assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
            refused = await http.post("/v1/chat/completions", json=BODY)
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert refused.json()["error"]["code"] == "queue_full"
            await asyncio.gather(*running)
            again = await http.post("/v1/chat/completions", json=BODY | {"max_tokens": 3})
            assert again.status_code == 200
            await settled(service)

    run(test())


def test_a_failing_pass_is_an_error_event_and_the_next_request_is_served() -> None:
    async def test() -> None:
        target = Slow(0.0, fails=9)
        async with serving(toy_engine(target)) as (app, service), client(app) as api, raw(app) as http:
            stream = await api.chat.completions.create(
                model="toy", messages=MESSAGES, stream=True, max_tokens=60, extra_body={"ignore_eos": True}
            )
            got: list[Any] = []
            with pytest.raises(openai.APIError, match="on fire"):
                await _take(stream, got)
            assert len(got) >= 3
            target._fails = target.passes + 4
            whole = await http.post("/v1/chat/completions", json=BODY)
            assert (whole.status_code, whole.json()["error"]["type"]) == (500, "server_error")
            assert (await http.post("/v1/chat/completions", json=BODY | {"max_tokens": 3})).status_code == 200
            await settled(service)

    run(test())


async def _take(stream: Any, into: list[Any]) -> None:
    async for chunk in stream:
        into.append(chunk)


def test_a_fault_in_the_loop_itself_ends_the_answers_not_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(toy_engine(Slow())) as (app, service), raw(app) as http:
            batch = service.ready.engine.batch
            admit = batch.admit

            def broken() -> None:
                batch.admit = admit  # type: ignore[method-assign]  # once
                raise ZeroDivisionError

            batch.admit = broken  # type: ignore[method-assign]  # a fault nobody foresaw
            reply = await http.post("/v1/chat/completions", json=BODY)
            assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")
            assert (await http.post("/v1/chat/completions", json=BODY | {"max_tokens": 3})).status_code == 200
            await settled(service)

    run(test())


def test_a_drafter_that_fails_is_off_and_takes_no_other_with_it() -> None:
    class Fails(TreeDrafter):
        def propose(self, contexts: Sequence[Context]) -> list[Draft]:
            raise RuntimeError("no idea")

    async def test() -> None:
        async with serving(toy_engine(drafter=Fails(0))) as (app, service), raw(app) as http:
            greedy = BODY | {"temperature": 0.0, "max_tokens": 100}
            first = (await http.post("/v1/chat/completions", json=greedy)).json()
            assert "tree failed and is off" in first["metrics"]["speculative_decoding"]["warning"]
            other = (await http.post("/v1/chat/completions", json=greedy | {"draft": "ngram"})).json()
            assert other["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
            assert other["choices"][0]["message"] == first["choices"][0]["message"]
            await settled(service)

    run(test())


def test_while_the_model_loads_callers_are_told_to_wait() -> None:
    async def test() -> None:
        go = threading.Event()

        def opening() -> Any:
            go.wait()
            return toy_engine()

        async with serving(opening, wait=False) as (app, service), raw(app) as http:
            assert (await http.get("/health")).status_code == 503
            early = await http.post("/v1/chat/completions", json=BODY)
            assert (early.status_code, early.json()["error"]["code"]) == (503, "model_loading")
            assert (await http.get("/v1/models")).status_code == 503
            assert (await http.get("/version")).status_code == 200
            go.set()
            while (await http.get("/health")).status_code != 200:
                await asyncio.sleep(0.001)
            assert service.status == "ready"

    run(test())


def test_a_model_that_cannot_be_loaded_is_kept_for_the_command_line() -> None:
    async def test() -> None:
        def opening() -> Any:
            raise ModelNotFound("no such model")

        async with serving(opening) as (app, service), raw(app) as http:
            assert str(service.failure) == "no such model"
            assert (await http.get("/health")).json() == {"status": "failed"}

    run(test())


def test_draining_ends_what_runs_and_takes_nothing_new() -> None:
    async def test() -> None:
        async with serving(toy_engine(Slow(0.005)), Settings(drain_s=1.0)) as (app, service), raw(app) as http:
            short = asyncio.create_task(http.post("/v1/chat/completions", json=BODY | {"max_tokens": 3}))
            long = asyncio.create_task(http.post("/v1/chat/completions", json=BODY | {"stream": True}))
            while service.ready.driver.running < 2:
                await asyncio.sleep(0.001)
            service.drain()
            refused = await http.post("/v1/chat/completions", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert (await http.get("/health")).json() == {"status": "draining"}
            assert (await short).status_code == 200
            assert '"code":"shutting_down"' in (await long).text
            await settled(service)

    run(test())


def _differing(target: ToyTarget) -> int:
    """Of 48 unlike requests, 16 at a time in a cache too small for them: how many differ from their solo runs."""

    async def test() -> int:
        engine = toy_engine(target, max_running=4)
        async with serving(engine, Settings(max_running=4)) as (app, service), client(app) as api:
            wanted = [_mixed(i) for i in range(48)]
            gate = asyncio.Semaphore(16)

            async def ask(options: dict[str, Any]) -> Any:
                async with gate:
                    return await api.chat.completions.create(model="toy", **options)

            replies = await asyncio.gather(*map(ask, wanted))
            plain = toy_engine(ToyTarget(V, context=64), drafter=None)
            differing = 0
            for options, reply in zip(wanted, replies, strict=True):
                want = [(choice.text, choice.finish_reason) for choice in _solo(plain, options).choices]
                differing += want != [(choice.message.content, choice.finish_reason) for choice in reply.choices]
            assert engine.batch.preemptions > 0
            await settled(service)
            return differing

    return asyncio.run(asyncio.wait_for(test(), 60))


def test_sixteen_at_once_under_preemption_are_each_their_solo_run() -> None:
    assert _differing(ToyTarget(V, context=64, pool_tokens=80)) == 0


def test_a_row_dependent_target_is_caught() -> None:
    """The negative control."""
    assert _differing(ToyTarget(V, context=64, pool_tokens=80, row_dependent=True)) > 0


def _mixed(i: int) -> dict[str, Any]:
    """Requests unlike one another: seeds, temperatures, stops, n, drafters."""
    extra: dict[str, Any] = {"ignore_eos": i % 4 > 0}
    if i % 3:
        extra["draft"] = ("none", "ngram", "suffix", "recycle")[i % 4]
    return {
        "messages": [{"role": "user", "content": "abcdefgh"[i % 5 :] * (1 + i % 3)}],
        "temperature": (0.0, 0.7, 1.0)[i % 3],
        "seed": i,
        "n": 2 if i % 5 == 0 else 1,
        "max_tokens": 5 + i % 30,
        "stop": ["stop", "g"] if i % 4 == 0 else ["p!"],
        "extra_body": extra,
    }


def _solo(engine: Any, options: dict[str, Any]) -> Any:
    own = {name: value for name, value in options.items() if name not in ("messages", "extra_body")}
    return engine.generate(options["messages"], ignore_eos=options["extra_body"]["ignore_eos"], **own)
