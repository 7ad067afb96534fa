from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from sooner.chat import ChatTemplate
from sooner.errors import InvalidRequest, UnsupportedModel
from sooner.store import ModelFiles

USER = [{"role": "user", "content": "Why is the sky blue?"}]
LLAMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{% generation %}{{ ' ' + m['content'] + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)


def test_the_default_models_own_format(default_files: ModelFiles) -> None:
    template = ChatTemplate(default_files.chat_template, bos_token="<|im_start|>", eos_token="<|im_end|>")
    assert template.render(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
    )
    turns = [{"role": "system", "content": "Be brief."}, *USER, {"role": "assistant", "content": "Rayleigh."}]
    assert template.render(turns, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy is the sky blue?<|im_end|>\n"
        "<|im_start|>assistant\nRayleigh.<|im_end|>\n"
    )


def test_tokens_refusals_and_the_generation_tag() -> None:
    template = ChatTemplate(LLAMA, bos_token="<s>", eos_token="</s>")
    turns = [*USER, {"role": "assistant", "content": "Rayleigh."}]
    assert template.render(turns) == "<s>[INST] Why is the sky blue? [/INST] Rayleigh.</s>"
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template.render(turns[1:])
    assert caught.value.param == "messages"
    assert template.render(turns[:1]) == "<s>[INST] Why is the sky blue? [/INST]"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<가>"}]'),
        ("{{ {'b': 1, 'a': '<'} | tojson(indent=1) }}", '{\n "b": 1,\n "a": "<"\n}'),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
        ("{% for m in messages %}\n    {% if true %}\nx{% endif %}\n{% endfor %}\n", "x"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}", "13"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% set ns = namespace(n=0) %}{% for m in [1, 2] %}{% set ns.n = ns.n + m %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ tools is none }} {{ tools }}", "True None"),
        (
            "{{ messages[0].content.strip() ~ '-' ~ 1 }}{{ 'a' * 3 }}{{ 'abc'.replace('b', 'x') | replace('c', 'y') }}",
            "<가>-1aaaaxy",
        ),
        ("{{ messages[0]['content'].split('<')[-1] }}{{ messages[::-1][0].role.startswith('us') }}", "가>True"),
        ("{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}", ""),
    ],
)
def test_the_conventions_of_templates(source: str, expected: str) -> None:
    assert ChatTemplate(source).render([{"role": "user", "content": "<가>"}]) == expected


def test_tools_and_variables_reach_the_template() -> None:
    template = ChatTemplate("{{ tools[0].function.name }} {{ enable_thinking }}")
    assert template.render(USER, tools=[{"function": {"name": "add"}}], enable_thinking=False) == "add False"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(x=1) }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ (messages|attr('__class__')).x }}",
        "{% include '/etc/passwd' %}",
        "{{ '{0.__class__.__mro__[1].x}'.format(1) or missing.x }}",
        "{{ lipsum(n=1000000000) }}",
    ],
)
def test_templates_do_not_escape(attack: str) -> None:
    with pytest.raises(InvalidRequest, match="refuses these messages") as caught:
        ChatTemplate(attack).render(USER)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "bomb",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(100000) %}" + "x" * 300 + "{% endfor %}",
        "{% set ns = namespace(x='12345678') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='12345678') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ ('x' * 9999999).replace('x', 'y' * 99999) }}",
        "{{ ('x' * 9999999) | replace('x', 'y' * 99999) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_templates_do_not_run_away(bomb: str) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        ChatTemplate(bomb).render(USER)
    assert time.monotonic() - began < 30


def test_the_budget_is_each_renderings_own() -> None:
    template = ChatTemplate("{% for i in range(60000) %}{% endfor %}ok")
    assert [template.render(USER) for _ in range(5)] == ["ok"] * 5


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'open", "{% unknown %}", "{{ x | nofilter }}"])
def test_invalid_templates_are_refused_when_loaded(source: str) -> None:
    with pytest.raises(UnsupportedModel, match="chat template is not valid") as caught:
        ChatTemplate(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (["hello"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([*USER, {"role": "user", "content": [{"type": "image_url"}]}], "messages[1].content"),
    ],
)
def test_malformed_messages_name_the_place(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate("{{ messages }}").render(messages)
    assert caught.value.param == param
    assert "\n" not in str(caught.value)


def test_text_parts_are_joined_and_tool_calls_need_no_content() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    calls = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    assert template.render([{"role": "user", "content": parts}, calls]) == "[ab][None]"


def test_the_callers_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    ChatTemplate("{{ messages[0].content }}").render(messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


def test_a_base_model_continues_one_text_and_refuses_conversations() -> None:
    template = ChatTemplate(None)
    assert template.render([{"role": "user", "content": "Once upon a time"}]) == "Once upon a time"
    for messages in ([{"role": "system", "content": "x"}], [*USER, *USER]):
        with pytest.raises(InvalidRequest, match="no chat template"):
            template.render(messages)
    with pytest.raises(InvalidRequest, match="no chat template"):
        template.render(USER, tools=[{}])
