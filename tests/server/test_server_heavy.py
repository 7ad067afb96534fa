"""Requests that take long to read (pictures, sounds, grammars) wait for one another in a bounded line, and nobody else
waits for them."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from serving import MESSAGES, raw, serving, toy_engine
from test_server_lives import run, settled

from sooner.engine import Engine
from sooner.prompt import PictureTemplate
from sooner.server import Service, Settings
from sooner.server.schema import ChatBody, TextBody
from sooner.targets.toy import ToyTarget
from toy import PIECES, ToyCodec, V

MARK = "d"
WAIT_S = 30


class Staring(ToyTarget):
    """A toy that looks at each picture until it is told to ``go``."""

    context = 64
    picture_mark = PIECES.index(MARK.encode())

    def __init__(self) -> None:
        super().__init__(V)
        self.go = threading.Event()
        self.seen = self.most = 0
        self._looking = 0
        self._lock = threading.Lock()

    def see(self, picture: bytes) -> list[int]:
        with self._lock:
            self._looking += 1
            self.seen += 1
            self.most = max(self.most, self._looking)
        assert self.go.wait(WAIT_S)
        with self._lock:
            self._looking -= 1
        return [1, 2, 3]

    def check_pictures(self, prompt: Sequence[int]) -> None:
        pass


class Marked:
    """A chat template with a mark for each picture."""

    def render(self, messages: Sequence[Mapping[str, Any]], **known: Any) -> str:
        return "".join(_said(message["content"]) for message in messages)


def _said(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", MARK) for part in content)


def watching(target: Staring) -> Engine:
    return toy_engine(target, template=PictureTemplate(Marked(), target, ToyCodec()))


def picture(*, tokens: int = 3, **more: Any) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(b"a picture").decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "abc"}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": tokens, "seed": 3, **more}


TEXT = {"messages": MESSAGES, "max_tokens": 3, "seed": 3}


async def posted(http: httpx2.AsyncClient, body: dict[str, Any], service: Service, queued: int) -> asyncio.Task[Any]:
    """A request on its way, as soon as ``queued`` wait to be read."""
    task = asyncio.create_task(http.post("/v1/chat/completions", json=body))
    while service.ready._queued < queued and not task.done():
        await asyncio.sleep(0.001)
    return task


def test_pictures_wait_for_one_another_and_texts_beside_go_on() -> None:
    async def test() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))  # a picture there would block all texts
        target = Staring()
        settings = Settings(max_waiting=2)
        async with serving(watching(target), settings) as (app, service), raw(app) as http:
            try:
                waiting = [await posted(http, picture(), service, queued) for queued in (1, 2, 3)]
                refused = await http.post("/v1/chat/completions", json=picture())
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
                assert refused.headers["retry-after"]
                for path, body in (("chat/completions", TEXT), ("completions", {"prompt": "abc", "max_tokens": 3})):
                    beside = await http.post(f"/v1/{path}", json=body)
                    assert beside.status_code == 200, beside.text
                assert not any(task.done() for task in waiting)
            finally:
                target.go.set()
            assert [(await task).status_code for task in waiting] == [200, 200, 200]
            assert (target.seen, target.most) == (3, 1)
            assert (await http.post("/v1/chat/completions", json=picture())).status_code == 200  # there is room again
            await settled(service)

    run(test())


@pytest.mark.parametrize(("own", "limit"), [(0.05, 600.0), (None, 0.05)])
def test_a_picture_that_takes_too_long_is_given_up(own: float | None, limit: float) -> None:
    async def test() -> None:
        target = Staring()
        asked = picture() if own is None else picture(timeout=own)
        async with serving(watching(target), Settings(timeout_s=limit)) as (app, service), raw(app) as http:
            try:
                reply = await http.post("/v1/chat/completions", json=asked)
            finally:
                target.go.set()
            assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
            assert service.ready._queued == 0

    run(test())


def test_a_picture_whose_time_is_over_before_its_turn_is_not_looked_at() -> None:
    async def test() -> None:
        target = Staring()
        async with serving(watching(target)) as (app, service), raw(app) as http:
            try:
                first = await posted(http, picture(), service, 1)
                while not target.seen:
                    await asyncio.sleep(0.001)
                second = await http.post("/v1/chat/completions", json=picture(timeout=0.05))
                assert second.status_code == 504
            finally:
                target.go.set()
            assert (await first).status_code == 200
            await asyncio.wrap_future(service.ready._heavy.submit(int))  # whatever came before it is over
            assert target.seen == 1

    run(test())


SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {}}}


@pytest.mark.parametrize(
    ("heavy", "more"),
    [
        (False, {}),
        (False, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
        (True, {"messages": picture()["messages"]}),
        (True, {"messages": [*MESSAGES, {"role": "user", "content": [{"type": "text", "text": "a"}, SOUND]}]}),
        (True, {"tools": []}),
        (True, {"response_format": SCHEMA}),
        (True, {"regex": "a"}),
        (True, {"grammar": "start: A"}),
    ],
)
def test_heavy_is_what_has_a_file_or_a_grammar(heavy: bool, more: dict[str, Any]) -> None:
    assert ChatBody.model_validate({"messages": MESSAGES, **more}).heavy == heavy


def test_texts_to_continue_are_heavy_with_a_grammar_alone() -> None:
    assert not TextBody.model_validate({"prompt": "abc"}).heavy
    assert TextBody.model_validate({"prompt": "abc", "regex": "a"}).heavy
