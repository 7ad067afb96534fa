"""One key's flood is not another's: places in the queue, turns to compile, and the time that an answer may take."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from serving import MESSAGES, client, raw, serving, toy_engine
from test_server_lives import BODY, Caller, Slow, run, settled

from sooner.server import Settings
from sooner.server.failures import Refusal
from sooner.server.reading import Asked
from sooner.server.schema import ChatBody
from sooner.targets.toy import ToyTarget
from toy import V

KEYS = ("flood", "single")
TYPE = {"content-type": "application/json"}
SHORT = {"model": "toy", "messages": MESSAGES, "max_tokens": 10, "seed": 3}


@pytest.mark.parametrize(("keys", "own"), [(KEYS, True), ((), False)])
def test_fifty_requests_of_one_key_do_not_keep_another_s_waiting(keys: tuple[str, ...], own: bool) -> None:
    """Without keys all callers are one, and wait for one another: the negative control."""

    async def test() -> None:
        target = Slow(0.001)
        settings = Settings(keys=keys, max_running=4, max_waiting=100)
        async with serving(toy_engine(target, max_running=4), settings) as (app, service):
            async with client(app, "flood") as flood, client(app, "single") as single:
                body = {**SHORT, "max_tokens": 25, "extra_body": {"ignore_eos": True}}
                many = [asyncio.create_task(flood.chat.completions.create(**{**body, "seed": i})) for i in range(50)]
                while service.ready.driver._choices < 50:
                    await asyncio.sleep(0.001)
                before = target.passes
                reply = await single.chat.completions.create(**SHORT)
                assert (target.passes - before <= 10 + 6) == own
                assert sum(task.done() for task in many) < 8 or not own
                plain = toy_engine(ToyTarget(V), drafter=None)
                want = plain.generate(MESSAGES, max_tokens=10, seed=3, temperature=1.0)
                assert reply.choices[0].message.content == want.text
                for i, task in enumerate(many):
                    want = plain.generate(MESSAGES, max_tokens=25, seed=i, temperature=1.0, ignore_eos=True)
                    assert (await task).choices[0].message.content == want.text
            await settled(service)

    run(test())


def test_a_key_that_fills_the_queue_leaves_room_for_the_next() -> None:
    async def test() -> None:
        settings = Settings(keys=KEYS, max_running=2, max_waiting=6)
        async with serving(toy_engine(Slow(), max_running=2), settings) as (app, service), raw(app) as http:
            flood, single = ({"authorization": f"Bearer {key}"} for key in KEYS)
            body, tasks = BODY | {"max_tokens": 100}, []
            for _ in range(6):
                tasks.append(asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=flood)))
                await asyncio.sleep(0.01)
            refused = [task for task in tasks if task.done()]
            assert len(refused) == 2  # four hold half of the eight places
            error = (await refused[0]).json()["error"]
            assert (error["code"], "share" in error["message"]) == ("queue_full", True)
            assert 1 <= int((await refused[0]).headers["retry-after"]) <= 60
            other = await http.post("/v1/chat/completions", json=BODY | {"max_tokens": 3, "n": 2}, headers=single)
            assert other.status_code == 200
            await asyncio.gather(*tasks)
            assert not service.ready.driver._held
            await settled(service)

    run(test())


def test_one_key_s_grammars_are_not_compiled_before_another_s() -> None:
    async def test() -> None:
        async with serving(settings=Settings(keys=KEYS, max_waiting=9)) as (_, service):
            order: list[str] = []
            go = threading.Event()

            def read(body: ChatBody, salt: str) -> Asked:
                go.wait(10)
                order.append(salt)
                return Asked(())

            body = ChatBody.model_validate({"messages": MESSAGES, "regex": "a"})
            ready = service.ready
            tasks = [asyncio.create_task(ready.read(read, body, "flood")) for _ in range(9)]
            await asyncio.sleep(0.01)
            with pytest.raises(Refusal, match="longer than"):
                await ready.read(read, body.model_copy(update={"timeout": 0.01}), "flood")
            tasks.append(asyncio.create_task(ready.read(read, body, "single")))
            await asyncio.sleep(0.01)
            with pytest.raises(Refusal, match="queue is full"):
                await ready.read(read, body, "single")
            go.set()
            await asyncio.gather(*tasks)
            assert order.index("single") <= 1
            assert order.count("flood") == 9

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_may_set_its_own_deadline_within_the_server_s(stream: bool) -> None:
    async def test() -> None:
        async with serving(toy_engine(Slow(0.005)), Settings(timeout_s=20)) as (app, service), raw(app) as http:
            begin = time.perf_counter()
            reply = await http.post("/v1/chat/completions", json=BODY | {"stream": stream, "timeout": 0.3})
            assert time.perf_counter() - begin < 5
            error = json.loads(reply.text.split("data: ")[-2] if stream else reply.text)["error"]
            assert (error["code"], reply.status_code) == ("deadline_exceeded", 200 if stream else 504)
            assert "0.3 s" in error["message"]
            for wrong in (21, 0, -1, "soon", 1e400):
                refused = await http.post(
                    "/v1/chat/completions", content=_json(BODY | {"timeout": wrong}), headers=TYPE
                )
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "timeout"), wrong
            enough = await http.post("/v1/chat/completions", json=BODY | {"max_tokens": 3, "timeout": 20})
            assert enough.status_code == 200
            await settled(service)

    run(test())


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def test_the_deadline_counts_the_time_in_the_queue() -> None:
    async def test() -> None:
        async with serving(toy_engine(Slow(0.005), max_running=1), Settings(max_running=1)) as (app, service):
            running = Caller(app, BODY | {"stream": True}, most=100)
            task = asyncio.create_task(running.call())
            while not running.messages:
                await asyncio.sleep(0.001)
            async with raw(app) as http:
                reply = await http.post("/v1/chat/completions", json=BODY | {"max_tokens": 2, "timeout": 0.1})
            assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
            assert not task.done()
            running._gone.set()
            await task
            await settled(service)

    run(test())
