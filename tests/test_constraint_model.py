"""Constraints on the real default model: the text under a schema is the same with every drafter, and valid."""

from __future__ import annotations

import json
from typing import Any

import pytest

import sooner
from sooner.completion import Completion
from sooner.constraint import CompiledConstraint, compile_constraint
from sooner.control.fixed import FixedController
from sooner.draft.forced import GRAMMAR
from sooner.draft.suffix import SuffixDrafter
from sooner.engine import Engine
from sooner.prompt import make_request
from sooner.server.tools import ToolParser, Tools
from test_engine_laws import visible
from toy import FlickerController

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "temperature_celsius": {"type": "integer", "minimum": -50, "maximum": 60},
        "condition": {"enum": ["sunny", "cloudy", "rainy"]},
        "days": {"type": "array", "items": {"enum": ["Mon", "Tue", "Wed"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "temperature_celsius", "condition", "days"],
    "additionalProperties": False,
}
PROMPTS = ["Give the weather in Seoul as JSON.", "Describe the weather in Oslo as JSON."]
TEMPERATURES = (0.0, 1.0)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return sooner.load(draft=None, pool_tokens=4096)


@pytest.fixture(scope="module")
def constraint(engine: Engine) -> CompiledConstraint:
    return compile_constraint("json_schema", SCHEMA, engine.codec)


def answers(engine: Engine, constraint: CompiledConstraint) -> list[Completion]:
    options: dict[str, Any] = {"max_tokens": 90, "seed": 3, "logprobs": 1, "constraint": constraint}
    handles = [engine.submit(engine.request(p, temperature=t, **options)) for p in PROMPTS for t in TEMPERATURES]
    for handle in handles:
        list(engine.follow(handle))
    return [engine.completion(handle) for handle in handles]


def test_a_schema_holds_and_no_draft_changes_a_bit(engine: Engine, constraint: CompiledConstraint) -> None:
    want = answers(engine, constraint)
    for answer in want:
        value = json.loads(answer.text)
        assert list(value) == SCHEMA["required"]
        assert value["condition"] in ("sunny", "cloudy", "rainy")
        assert answer.finish_reason == "stop"
    try:
        engine.drafter = SuffixDrafter()
        for controller in (FixedController(8), FlickerController(6, seed=1)):
            engine.controller = controller
            got = answers(engine, constraint)
            assert [visible(c) for c in got] == [visible(c) for c in want]
        assert not engine.busy
    finally:
        engine.drafter = None
    sources = [source for answer in got for _, source in answer.pieces]
    assert sources.count(GRAMMAR) > len(sources) // 5
    steps = sum(answer.speculation.steps for answer in got)
    assert steps < 0.85 * sum(answer.speculation.steps for answer in want)


def test_a_call_that_must_be_made_is_the_same_however_the_text_fell_into_steps(engine: Engine) -> None:
    city = {"type": "string", "maxLength": 12}
    parameters = {"type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": False}
    function = {"name": "weather", "parameters": parameters}
    wanted = Tools.read([{"type": "function", "function": function}], "required").constraint("hermes")
    assert wanted is not None
    constraint = compile_constraint(*wanted, engine.codec)
    read = []
    for drafter in (None, SuffixDrafter()):
        engine.drafter, engine.controller = drafter, FixedController(8)
        parser = ToolParser("hermes", key="7")
        for step in engine.stream("How is the weather in Seoul?", constraint=constraint, max_tokens=60, seed=1):
            parser.feed(step.text)
        parser.finish()
        read.append((parser.content, parser.calls))
    engine.drafter = None
    assert read[0] == read[1]
    content, [call] = read[0]
    assert (content, call["function"]["name"]) == ("", "weather")
    assert list(json.loads(call["function"]["arguments"])) == ["city"]


def test_tools_reach_the_template_and_nothing_else(engine: Engine) -> None:
    class Telling:
        def render(self, messages: Any, *, add_generation_prompt: bool = True, tools: Any = None) -> str:
            return f"{messages[0]['content']} {tools}"

    codec, tools = engine.codec, [{"type": "function", "function": {"name": "f"}}]
    made = make_request("Hi", None, {"tools": tools}, codec=codec, template=Telling())
    assert codec.decode(made.prompt) == f"Hi {tools}"
    for prompt, raw in (([1, 2], False), ("Hi", True)):
        with pytest.raises(sooner.InvalidRequest, match="chat template") as caught:
            engine.request(prompt, tools=tools, raw=raw)
        assert caught.value.param == "tools"


def test_the_models_own_spelling_of_forced_text(engine: Engine) -> None:
    text = "The temperature is 21 degrees, 서울 is sunny."
    fixed = compile_constraint("grammar", f"start: {json.dumps(text, ensure_ascii=False)}", engine.codec)
    answer = engine.generate("Say it.", constraint=fixed, max_tokens=60)
    assert answer.text == text
    assert list(answer.token_ids) == engine.codec.encode(text, bos=False)
