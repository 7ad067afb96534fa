"""Function calls: any cut of a text gives the same calls, what is no call stays content, and bad tools are refused."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner.chat import ChatTemplate
from sooner.constraint import compile_constraint
from sooner.errors import InvalidRequest
from sooner.server.tools import FORMATS, ToolParser, Tools, format_of, template_messages
from sooner.store import ModelFiles
from sooner.text import Tokenizer

Call = tuple[str, str]
"""Name and arguments."""


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


def put_together(deltas: Sequence[dict[str, Any]]) -> tuple[str, list[Call]]:
    """The message as a client assembles it from a stream."""
    content, calls = "", list[dict[str, str]]()
    for delta in deltas:
        content += delta.get("content", "")
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(calls):
                assert piece["id"]
                assert piece["type"] == "function"
                calls.append({"id": piece["id"], "name": piece["function"]["name"], "arguments": ""})
            assert piece["index"] == len(calls) - 1
            calls[-1]["arguments"] += piece["function"]["arguments"]
    assert len({call["id"] for call in calls}) == len(calls)
    return content, [(call["name"], call["arguments"]) for call in calls]


def read(parser: ToolParser, parts: Sequence[str]) -> tuple[str, list[Call]]:
    deltas = [delta for part in parts for delta in parser.feed(part)] + parser.finish()
    assert all(delta.get("content") != "" for delta in deltas)
    message = put_together(deltas)
    functions = [call["function"] for call in parser.calls]
    assert message == (parser.content, [(f["name"], f["arguments"]) for f in functions])
    return message


TEXTS: list[tuple[str, str, str, list[Call]]] = [
    (
        "hermes",
        'Sure.\n<tool_call>\n{"name": "f", "arguments": {"a": "}\\""}}\n</tool_call>',
        "Sure.",
        [("f", '{"a": "}\\""}')],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": [1, {}]}, "name": "f"}</tool_call>\n<tool_call>{"name":"g","arguments":{}}',
        "",
        [("f", '{"a": [1, {}]}'), ("g", "{}")],
    ),
    (
        "hermes",
        '<tool_call>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": "{\\"z\\": 2}"}]</tool_call> Ok',
        " Ok",
        [("f", "{}"), ("g", '{"z": 2}')],
    ),
    ("hermes", '<tool_call>{"id": 7, "name": "f"}</tool_call> a <tool', " a <tool", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "cut', "", [("f", '{"a": "cut')]),
    ("hermes", '<tool_call>{"nam', '<tool_call>{"nam', []),
    ("hermes", "a < b <tool_cal <tool_call>no</tool_call> ", "a < b <tool_cal <tool_call>no</tool_call> ", []),
    (
        "hermes",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        [],
    ),
    ("hermes", ' {"name": "f", "arguments": {}}', ' {"name": "f", "arguments": {}}', []),
    (
        "llama3",
        '{"name": "f", "parameters": {"q": "a"}}; {"name": "g", "parameters": {}}',
        "",
        [("f", '{"q": "a"}'), ("g", "{}")],
    ),
    ("llama3", '\n{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {}}<|eom_id|>', "", [("f", "{}")]),
    ("llama3", '{"name": "Bob"}', '{"name": "Bob"}', []),
    ("llama3", '{"answer": {"name": "f"}}', '{"answer": {"name": "f"}}', []),
    ("llama3", 'See {"name": "f", "parameters": {}}', 'See {"name": "f", "parameters": {}}', []),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("mistral", '[{"name": "f", "arguments": {"a": 1}, "id": "123456789"}]', "", [("f", '{"a": 1}')]),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a": {"b": 1}}[TOOL_CALLS]g{"c": 2}',
        "",
        [("f", '{"a": {"b": 1}}'), ("g", '{"c": 2}')],
    ),
    ("mistral", "[1, 2] is a list, [{ is not", "[1, 2] is a list, [{ is not", []),
    ("mistral", "[TOOL_CALLS] oops", "[TOOL_CALLS] oops", []),
]


@pytest.mark.parametrize(("format", "text", "content", "calls"), TEXTS)
def test_texts_as_models_write_them_cut_everywhere(format: str, text: str, content: str, calls: list[Call]) -> None:
    assert read(ToolParser(format), [text]) == (content, calls)
    assert read(ToolParser(format), list(text)) == (content, calls)
    for cut in range(len(text)):
        assert read(ToolParser(format), pieces(text, [cut, cut + 1])) == (content, calls)


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,9}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\{}[]<>,: \n/é안', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(alphabet='ab"}\\', max_size=4), values, max_size=3)
calls_of = st.lists(st.tuples(names, arguments), min_size=1, max_size=3)
styles = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def written(format: str, calls: Sequence[tuple[str, Any]], style: dict[str, Any], swap: bool) -> tuple[str, list[Call]]:
    """What a model writes, and what must be read."""
    key = FORMATS[format].arguments
    objects, told = [], []
    for name, given_ in calls:
        items = [("name", name), (key, given_)]
        objects.append(json.dumps(dict(items[::-1] if swap else items), **style))
        told.append((name, json.loads(json.dumps(given_))))
    texts = {
        "hermes": "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in objects),
        "llama3": "; ".join(objects),
        "mistral": "[TOOL_CALLS][" + ", ".join(objects) + "]",
    }
    return texts[format], told


@given(st.sampled_from(sorted(FORMATS)), calls_of, styles, st.booleans(), st.lists(st.integers(0, 10**6), max_size=12))
@settings(max_examples=150, deadline=None)
def test_any_cut_gives_the_calls_that_were_written(
    format: str, calls: list[tuple[str, Any]], style: dict[str, Any], swap: bool, cuts: list[int]
) -> None:
    text, told = written(format, calls, style, swap)
    before = "" if format == "llama3" else "So < [ {: "
    content, found = read(ToolParser(format), pieces(before + text, cuts))
    assert content == before.rstrip()
    assert [(name, json.loads(arguments)) for name, arguments in found] == told


@given(
    st.sampled_from(sorted(FORMATS)),
    st.text(alphabet='[{<tool_call>}]/"name:,ARGSTL| \n', max_size=60),
    st.lists(st.integers(0, 10**6), max_size=10),
)
@settings(max_examples=200, deadline=None)
def test_any_cut_of_any_text_reads_the_same_and_without_a_call_nothing_is_lost(
    format: str, text: str, cuts: list[int]
) -> None:
    whole = read(ToolParser(format), [text])
    assert read(ToolParser(format), pieces(text, cuts)) == whole
    if not whole[1]:
        assert whole[0] == text


class PerDelta(ToolParser):
    """Looks for marks in each delta by itself, as parsers of token streams do."""

    def feed(self, text: str) -> list[dict[str, Any]]:
        deltas = super().feed(text)
        if self._state == self._text:
            self._say(self._held)
            self._held = ""
        return deltas + self._drain()


def test_a_parser_of_single_deltas_is_caught() -> None:
    """Negative control."""
    format, text, content, calls = TEXTS[0]
    assert read(PerDelta(format), [text]) == (content, calls)
    assert any(read(PerDelta(format), pieces(text, [cut])) != (content, calls) for cut in range(len(text)))


def test_arguments_are_told_as_they_are_written() -> None:
    parser = ToolParser("hermes", key="seed")
    first = parser.feed('<tool_call>{"name": "f", "arguments": {"city": "Se')
    assert [list(delta["tool_calls"][0]) for delta in first] == [
        ["index", "id", "type", "function"],
        ["index", "function"],
    ]
    assert parser.feed("oul") == [{"tool_calls": [{"index": 0, "function": {"arguments": "oul"}}]}]
    assert parser.calls[0]["id"] == first[0]["tool_calls"][0]["id"]


def test_ids_depend_on_the_key_alone_and_are_of_the_length_that_templates_want() -> None:
    text = '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]'
    parsers = [ToolParser("mistral", key=key) for key in ("a", "a", "b")]
    for parser in parsers:
        parser.feed(text)
    ids = [[call["id"] for call in parser.calls] for parser in parsers]
    assert ids[0] == ids[1] != ids[2]
    assert all(len(id) == 9 and id.isalnum() for id in ids[0])
    assert ToolParser("hermes")._key != ToolParser("hermes")._key


def test_a_long_call_costs_time_in_proportion() -> None:
    """100,000 characters of arguments, one by one."""
    text = '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 100_000 + '"}}</tool_call>'
    assert len(read(ToolParser("hermes"), pieces(text, range(0, len(text), 7)))[1][0][1]) > 100_000


QWEN = (
    "{% if tools %}# Tools\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools><tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)


def test_formats_are_told_by_their_templates() -> None:
    assert format_of(QWEN) == "hermes"
    assert format_of("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]") == "mistral"
    assert format_of('{% if tools %}{{ \'{"name": function name, "parameters": ...\' }}{% endif %}') == "llama3"
    assert format_of("{% if tools %}<|python_tag|>{% endif %}") == "llama3"
    assert format_of("{% if tools %}<tool_call><function=x>{% endif %}") is None
    assert format_of("{% if tools %}{{ tools }}{% endif %}") is None
    assert format_of("{% for m in messages %}<tool_call>{% endfor %}") is None


def function(name: str, parameters: Any = None) -> dict[str, Any]:
    about = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": about}


def test_earlier_calls_reach_the_template_as_objects() -> None:
    call = {"id": "1", **function("f")}
    call["function"]["arguments"] = '{"a": 1}'
    broken = {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call, broken]},
        {"role": "tool", "content": "3"},
    ]
    text = ChatTemplate(QWEN).render(template_messages(messages), tools=[function("f")])
    assert text.endswith('assistant: None{"a": 1}"{"tool: 3')
    assert call["function"]["arguments"] == '{"a": 1}'  # the caller's own is as it was


TWO = [function("f", {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}), function("g")]
CHOICES: list[tuple[Any, Any, str]] = [
    ("f", None, "tools"),
    ([], None, "tools"),
    ([{"type": "code"}], None, "tools[0]"),
    ([{"type": "function"}], None, "tools[0]"),
    ([function("f"), function("a b")], None, "tools[1].function.name"),
    ([function("f", [1])], None, "tools[0].function.parameters"),
    ([function("f"), function("f")], None, "tools"),
    (TWO, "maybe", "tool_choice"),
    (TWO, {"type": "function"}, "tool_choice"),
    (TWO, {"type": "function", "function": {"name": "ff"}}, "tool_choice"),
]


@pytest.mark.parametrize(("tools", "choice", "param"), CHOICES)
def test_bad_tools_are_refused_by_name(tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Tools.read(tools, choice)
    assert caught.value.param == param
    assert "\n" not in str(caught.value)


def test_choices_are_read() -> None:
    assert [Tools.read(TWO, choice).choice for choice in (None, "none", "auto", "required")] == [
        "auto",
        "none",
        "auto",
        "required",
    ]
    assert Tools.read(TWO, {"type": "function", "function": {"name": "g"}}).named == "g"
    assert Tools.read(TWO).constraint("hermes") is None
    with pytest.raises(InvalidRequest, match="no tool call format"):
        ToolParser("xml")


@pytest.fixture(scope="module")
def tokenizer(default_files: ModelFiles) -> Tokenizer:
    return Tokenizer.load(default_files.folder, eos_ids=default_files.eos_ids or None)


REFERRING = {
    "type": "object",
    "properties": {"to": {"$ref": "#/$defs/Place"}, "by": {"enum": ["air", "sea"]}},
    "required": ["to", "by"],
    "additionalProperties": False,
    "$defs": {"Place": {"type": "object", "properties": {"zip": {"type": "integer", "minimum": 1, "maximum": 999}}}},
}
REFERRING["$defs"]["Place"] |= {"required": ["zip"], "additionalProperties": False}  # type: ignore[index]


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "send"}}])
def test_what_must_be_a_call_is_one_that_the_parser_reads(tokenizer: Tokenizer, format: str, choice: Any) -> None:
    tools = Tools.read([function("send", REFERRING), function("stop")], choice)
    wanted = tools.constraint(format)
    assert wanted is not None
    compiled = compile_constraint(*wanted, tokenizer)
    called = set()
    for seed in range(8):
        chance, matcher, text = random.Random(seed), compiled.open(), b""
        while not matcher.ended:
            allowed = [t for t in matcher.allowed().tolist() if t not in tokenizer.eos_ids]
            token = chance.choice(allowed)
            matcher.push(token)
            text += tokenizer.token_bytes(token)
        content, [(name, arguments)] = read(ToolParser(format), [text.decode()])
        assert not content
        called.add(name)
        value = json.loads(arguments)
        assert value == {} if name == "stop" else value["by"] in ("air", "sea") and 1 <= value["to"]["zip"] <= 999
    assert called == ({"send", "stop"} if choice == "required" else {"send"})
