"""The server on the default model: concurrent answers are their solo runs, forms hold, and every block comes back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from serving import client, serving

import sooner
from sooner.constraint import compile_constraint
from sooner.engine import Engine
from sooner.server import Settings
from sooner.store import ModelFiles
from sooner.targets.openvino import OpenVINOTarget

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]}
FORM: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
BODIES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 1, "n": 2},
    {"temperature": 1.0, "seed": 2, "extra_body": {"draft": "none"}},
    {"temperature": 0.0, "response_format": FORM},
    {"temperature": 0.7, "seed": 3, "stop": ["."], "extra_body": {"draft": "kind=ngram,max=6"}},
    {"temperature": 0.0, "prediction": {"type": "content", "content": "The sky is blue because of the way"}},
]


@pytest.fixture(scope="module")
def engine(default_files: ModelFiles) -> Engine:
    return sooner.load(max_running=4, pool_tokens=1024)


def body(i: int) -> dict[str, Any]:
    question = "Name a river." if i % 6 in (1, 3) else "Why is the sky blue?"
    return {"model": "", "max_tokens": 24, "messages": [{"role": "user", "content": question}], **BODIES[i % 6]}


def test_concurrent_answers_are_their_solo_runs(engine: Engine) -> None:
    async def test() -> list[Any]:
        async with serving(engine, Settings(max_running=4)) as (app, _), client(app) as api:
            return await asyncio.gather(*(api.chat.completions.create(**body(i)) for i in range(12)))

    replies = asyncio.run(test())
    assert isinstance(engine.target, OpenVINOTarget)
    assert engine.target.pool.held == 0
    constraint = compile_constraint("json_schema", SCHEMA, engine.codec)
    for i, reply in enumerate(replies):
        asked = body(i)
        own = {name: asked[name] for name in ("temperature", "seed", "n", "max_tokens") if name in asked}
        form = constraint if "response_format" in asked else None
        stop = tuple(asked.get("stop", ()))
        want = engine.generate(asked["messages"], **own, stop=stop, drafting=False, constraint=form)
        assert [c.message.content for c in reply.choices] == [c.text for c in want.choices]
        if form is not None and want.finish_reason == "stop":
            assert set(json.loads(want.text)) >= {"name"}
    assert replies[5].usage.completion_tokens_details.accepted_prediction_tokens


def test_a_later_turn_finds_the_conversation_in_the_cache(engine: Engine) -> None:
    async def test() -> tuple[int, int]:
        async with serving(engine, Settings(keys=("one", "two"), max_running=4)) as (app, _):
            turns: Any = [{"role": "user", "content": "Name three rivers in Europe and say a word about each of them."}]
            cached = []
            for key in ("one", "two", "one"):
                async with client(app, key) as api:
                    reply: Any = await api.chat.completions.create(model="", messages=turns, max_tokens=24)
                    cached.append(reply.usage.prompt_tokens_details.cached_tokens)
            assert cached[0] == 0
            return cached[1], cached[2]

    other, own = asyncio.run(test())
    assert other == 0
    assert own >= 32
