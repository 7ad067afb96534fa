"""Texts that must have a form: JSON, schemas, expressions, grammars, through HTTP, against a hostile drafter."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from serving import MESSAGES, client, raw, serving

from commandline import Joined
from sooner.constraint import compile_constraint
from sooner.draft.random import RandomDrafter
from sooner.engine import Engine
from toy_json import CODEC, V, json_engine

PARTS = {"a": {"type": "integer"}, "b": {"enum": ["ab", "cd"]}}
SCHEMA = {"type": "object", "properties": PARTS, "required": ["a", "b"]}
WRAPPED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


def engine(*, drafter: bool = True) -> Engine:
    made = json_engine(RandomDrafter(vocab_size=V) if drafter else None, seed=2)
    made.template, made.name = Joined(), "toy"
    return made


FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": {"type": "json_object"}}, ("json_object", None)),
    ({"response_format": WRAPPED}, ("json_schema", SCHEMA)),
    ({"regex": "(ab|cd){2,6}"}, ("regex", "(ab|cd){2,6}")),
    ({"grammar": 'start: "ab" ("1" | "2")+ "x"'}, ("grammar", 'start: "ab" ("1" | "2")+ "x"')),
]


@pytest.mark.parametrize("stream", [False, True])
def test_eight_at_once_keep_their_forms_and_are_their_solo_runs(stream: bool) -> None:
    async def ask(api: Any, i: int) -> str:
        body = {"model": "toy", "messages": MESSAGES, "seed": i, "max_tokens": 60, "extra_body": FORMS[i % 4][0]}
        if not stream:
            return str((await api.chat.completions.create(**body)).choices[0].message.content)
        stream_ = await api.chat.completions.create(**body, stream=True)
        return "".join([chunk.choices[0].delta.content async for chunk in stream_])

    async def test() -> list[str]:
        async with serving(engine()) as (app, _), client(app) as api:
            return await asyncio.gather(*(ask(api, i) for i in range(8)))

    plain = engine(drafter=False)
    for i, text in enumerate(asyncio.run(test())):
        kind, value = FORMS[i % 4][1]
        constraint = compile_constraint(kind, value, CODEC)
        whole = plain.generate(MESSAGES, seed=i, max_tokens=60, temperature=1.0, constraint=constraint)
        assert text == whole.text
        if i % 4 == 1 and whole.finish_reason == "stop":
            assert set(json.loads(text)) == {"a", "b"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "wrong"}}}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"regex": "("}, "regex"),
        ({"regex": "x" * 100_000}, "regex"),
        ({"grammar": "start: ?"}, "grammar"),
        ({"grammar": "a", "regex": "a"}, "regex"),
    ],
)
def test_forms_that_cannot_be_had_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    async def test() -> None:
        async with serving(engine()) as (app, _), raw(app) as http:
            reply = await http.post("/v1/chat/completions", json={"messages": MESSAGES} | body)
            assert reply.status_code == 400, reply.text
            assert reply.json()["error"]["param"] == param
            assert (await http.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2})).status_code == 200

    asyncio.run(test())
