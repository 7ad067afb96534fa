"""Function calls through HTTP: what is offered reaches the template, what is called comes back in OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from serving import client, raw, serving

from sooner.chat import ChatTemplate
from sooner.control.fixed import FixedController
from sooner.draft.random import RandomDrafter
from sooner.engine import Engine
from sooner.targets.toy import ToyTarget
from sooner.text import Detokenizer

V = 257
HERMES = (
    "{% if tools %}{{ tools[0].function.name }} is offered, call it as <tool_call>...</tool_call>{% endif %}"
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}{% endfor %}"
)
MESSAGES: Any = [{"role": "user", "content": "Is it raining in Oslo?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
TOOLS: Any = [{"type": "function", "function": {"name": "rain", "parameters": PARAMETERS}}]


class ByteCodec:
    """Every byte is a token; 0 ends a text."""

    eos_ids = frozenset({0})
    vocab_size = V

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        return [byte + 1 for byte in text.encode()]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        return bytes([id - 1]) if 0 < id < V else b""

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.token_bytes)


def engine(template: str = HERMES) -> Engine:
    drafter = RandomDrafter(vocab_size=V)
    options: dict[str, Any] = {"drafter": drafter, "controller": FixedController(6), "template": ChatTemplate(template)}
    return Engine(ToyTarget(V, context=2000), ByteCodec(), name="toy", **options)


CALL = '<tool_call>\\n{"name": "rain", "arguments": {"city": "Rome"}}\\n</tool_call>'
SAID = json.dumps(f"Let me see. {CALL}\\n{CALL}").replace("\\\\n", "\\n")
"""A grammar's text, which makes the toy say something and then call twice."""


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "rain"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_must_be_made_is_made(choice: Any, stream: bool) -> None:
    async def test() -> None:
        async with serving(engine()) as (app, _), client(app) as api:
            options = {"model": "toy", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "seed": 1}
            call, reason = await (_streamed if stream else _whole)(api, options)
            assert call["function"]["name"] == "rain"
            assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Rome")
            assert call["id"].startswith("call_")
            assert reason == "tool_calls"

    asyncio.run(asyncio.wait_for(test(), 60))


async def _whole(api: Any, options: dict[str, Any]) -> tuple[Any, str]:
    reply = await api.chat.completions.create(**options)
    assert reply.choices[0].message.content is None
    (call,) = reply.choices[0].message.tool_calls
    return call.model_dump(), reply.choices[0].finish_reason


async def _streamed(api: Any, options: dict[str, Any]) -> tuple[Any, str]:
    async with api.chat.completions.stream(**options) as stream:  # the client's own way to put deltas together
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    return call.model_dump(), final.choices[0].finish_reason


def test_content_and_two_calls_are_the_same_whole_and_streamed() -> None:
    async def test() -> None:
        async with serving(engine()) as (app, _), client(app) as api:
            options: dict[str, Any] = {"model": "toy", "messages": MESSAGES, "tools": TOOLS, "n": 2}
            options["extra_body"] = {"grammar": f"start: {SAID}"}
            whole = await api.chat.completions.create(**options)
            async with api.chat.completions.stream(**options) as stream:
                async for _ in stream:
                    pass
                final = await stream.get_final_completion()
            for one, other in zip(whole.choices, final.choices, strict=True):
                assert one.finish_reason == other.finish_reason == "tool_calls"
                assert one.message.content is not None
                assert one.message.content.startswith("Let me see.")
                assert one.message.content == other.message.content
                calls = [(c.function.name, json.loads(c.function.arguments)) for c in one.message.tool_calls or ()]
                assert calls == [("rain", {"city": "Rome"})] * 2
                streamed = [(c.function.name, json.loads(c.function.arguments)) for c in other.message.tool_calls or ()]
                assert streamed == calls

    asyncio.run(asyncio.wait_for(test(), 60))


def test_the_model_is_told_of_the_tools_and_of_earlier_calls() -> None:
    async def test() -> None:
        async with serving(engine()) as (app, service), raw(app) as http:
            seen: list[str] = []
            submit = service.ready.engine.submit

            def noting(request: Any) -> Any:
                seen.append(ByteCodec().decode(request.prompt))
                return submit(request)

            service.ready.engine.submit = noting  # type: ignore[method-assign]  # to see the prompt
            call = {"id": "c", "type": "function", "function": {"name": "rain", "arguments": '{"city": "Oslo"}'}}
            history = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "no"}]
            for more in ({"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}, {}):
                body = {"messages": history, "max_tokens": 1, **more}
                assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
            assert [text.startswith("rain is offered") for text in seen] == [True, False, False]
            assert all("]Oslo[tool]no" in text or "NoneOslo[tool]no" in text for text in seen), seen

    asyncio.run(test())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "snow"}}}, "tool_choice"),
    ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"tools": TOOLS, "tool_choice": "required", "regex": "a"}, "regex"),
    ({"tools": TOOLS * 2}, "tools"),
]


def test_tools_that_cannot_be_had_are_refused_by_name() -> None:
    async def test() -> None:
        async with serving(engine()) as (app, _), raw(app) as http:
            for body, param in REFUSED:
                reply = await http.post("/v1/chat/completions", json={"messages": MESSAGES, **body})
                assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
        async with serving(engine("{{ messages[0].content }}")) as (app, _), raw(app) as http:
            reply = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": TOOLS})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools"), reply.text

    asyncio.run(test())
