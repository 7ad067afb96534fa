"""Function calls end to end: an imported model whose template is told of tools, asked by OpenAI's own client.

The weights are random; what must be a call is forced by its grammar, what may be one is written by a grammar of ours.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import client, raw, serving

import sooner
from sooner.engine import Engine

TEMPLATE = """\
{%- if tools %}<|im_start|>system
Functions: <tools>{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}</tools>
Call one by <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""In the manner of Hermes and Qwen."""

RAIN = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "rain", "description": "Will it rain?", "parameters": RAIN}},
    {"type": "function", "function": {"name": "now"}},
]
MESSAGES: Any = [{"role": "user", "content": "the quick fox?"}]
OPTIONS: dict[str, Any] = {"model": "", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 120}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "store"))
        tiny = importlib.import_module("tiny_gguf")
        tokens, merges, types = tiny.byte_level_vocabulary()
        marks = {"<tool_call>": 4, "</tool_call>": 4}  # in such vocabularies they are tokens of their own, and text
        for i, (mark, kind) in enumerate(marks.items(), start=len(tokens) - len(marks)):
            tokens[i], types[i] = mark, kind
        patch.setattr(tiny, "byte_level_vocabulary", lambda: (tokens, merges, types))
        patch.setattr(tiny, "CONTEXT", 2048)
        folder = tmp_path_factory.mktemp("tools")
        patch.setenv("SOONER_CACHE", str(folder / "cache"))
        path = tiny.write_gguf(folder / "caller.gguf", arch="qwen2", pre="qwen2", template=TEMPLATE)
        yield sooner.load(str(path), draft="kind=ngram,max=6", budget=6, pool_tokens=4096, offline=True)
        sys.modules.pop("tiny_gguf", None)


def ask(engine: Engine, *bodies: dict[str, Any]) -> list[Any]:
    """What OpenAI's client makes of each, the first choice: content, calls (name and arguments), finish reason."""

    async def one(api: Any, body: dict[str, Any]) -> Any:
        if not body.pop("streamed", False):
            return await api.chat.completions.create(**body)
        async with api.chat.completions.stream(**body) as stream:  # the client's own way to put deltas together
            async for _ in stream:
                pass
            return await stream.get_final_completion()

    async def test() -> list[Any]:
        async with serving(engine) as (app, _), client(app) as api:
            return [await one(api, {**OPTIONS, **body}) for body in bodies]

    found = []
    for reply in asyncio.run(asyncio.wait_for(test(), 120)):
        choice = reply.choices[0]
        calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
        assert all(c.id.startswith("call_") and c.type == "function" for c in choice.message.tool_calls or ())
        found.append((choice.message.content or "", calls, choice.finish_reason))
    return found


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "rain"}}])
def test_what_must_be_called_is_called_however_it_is_asked(engine: Engine, choice: Any) -> None:
    body = {"tool_choice": choice, "seed": 5, "temperature": 1.5}
    plain = {"extra_body": {"draft": "none"}}
    answers = ask(engine, body, body | {"streamed": True}, body | plain, body | plain | {"streamed": True})
    content, ((name, arguments),), reason = answers[0]
    assert (content, reason) == ("", "tool_calls")
    if name == "rain":
        value = json.loads(arguments)
        assert value["city"] in ("Oslo", "Rome")
        assert 1 <= value["days"] <= 9
    else:
        assert (name, json.loads(arguments)) == ("now", {})
    assert answers == answers[:1] * 4


def test_what_may_be_called_is_found_in_the_text(engine: Engine) -> None:
    call = '<tool_call>\n{"name": "rain", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
    form = {"extra_body": {"grammar": f"start: {json.dumps('the fox. ' + call)}"}}
    none = {"tool_choice": "none", **form}
    answers = ask(engine, form, form | {"streamed": True}, none, none | {"streamed": True})
    content, ((name, arguments),), reason = answers[0]
    assert (content.strip(), name, reason) == ("the fox.", "rain", "tool_calls")
    assert json.loads(arguments) == {"city": "Rome", "days": 2}
    assert answers[1] == answers[0]
    assert answers[2] == answers[3] == ("the fox. " + call, [], "stop")  # not offered, so not a call


def test_a_text_without_a_call_stays_a_text(engine: Engine) -> None:
    for seed in range(3):
        body = {"seed": seed, "temperature": 1.0, "extra_body": {"regex": "[a-z <{]{12,30}"}}
        whole, streamed = ask(engine, body, body | {"streamed": True})
        assert whole == streamed
        assert whole[1] == []
        assert whole[0]


def test_a_call_its_result_and_the_next_turn(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    submit = engine.submit

    def noting(request: Any) -> Any:
        seen.append(engine.codec.decode(request.prompt))
        return submit(request)

    monkeypatch.setattr(engine, "submit", noting)

    async def test() -> None:
        async with serving(engine) as (app, _), client(app) as api, raw(app) as http:
            first = await api.chat.completions.create(**OPTIONS, tool_choice="required", seed=2)
            message: Any = first.choices[0].message
            (call,) = message.tool_calls
            turns = [*MESSAGES, message, {"role": "tool", "tool_call_id": call.id, "content": "no, never"}]
            again = {**OPTIONS, "messages": turns, "max_tokens": 8}
            await api.chat.completions.create(**again)
            arguments = json.dumps(json.loads(call.function.arguments))
            assert f'{{"name": "{call.function.name}", "arguments": {arguments}}}' in seen[1].split("assistant")[1]
            assert "<tool_response>no, never</tool_response>" in seen[1]
            assert seen[0].count("Will it rain?") == seen[1].count("Will it rain?") == 1
            refused = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "tool_choice": "required"})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")

    asyncio.run(asyncio.wait_for(test(), 120))


def test_the_marks_are_single_tokens_and_text(engine: Engine) -> None:
    """Else this model would be no example of those it stands for."""
    (mark,) = engine.codec.encode("<tool_call>", special=True, bos=False)
    assert engine.codec.token_bytes(mark) == b"<tool_call>"
