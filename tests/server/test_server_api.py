"""OpenAI's two APIs on a toy engine, through OpenAI's own client: shapes, parameters, figures, refusals."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from serving import MESSAGES, client, raw, serving, toy_engine

from sooner.server import Settings

OPTIONS: dict[str, Any] = {"model": "toy", "messages": MESSAGES, "seed": 3, "max_tokens": 24}


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def solo(**options: Any) -> Any:
    """The same answer from the engine itself, without a server."""
    defaults = {"temperature": 1.0, "seed": 3, "max_tokens": 24}
    return toy_engine().generate(MESSAGES, **(defaults | options))


def test_an_answer_is_what_the_engine_says() -> None:
    async def test() -> None:
        async with serving() as (app, _), client(app) as api:
            reply = await api.chat.completions.create(**OPTIONS, n=2)
            want = solo(n=2)
            assert [c.message.content for c in reply.choices] == [c.text for c in want.choices]
            assert [c.finish_reason for c in reply.choices] == [c.finish_reason for c in want.choices]
            assert reply.usage is not None
            assert reply.usage.completion_tokens == sum(c.usage.completion_tokens for c in want.choices)
            assert (reply.object, reply.model, reply.id[:9]) == ("chat.completion", "toy", "chatcmpl-")
            assert reply.choices[0].message.role == "assistant"

    run(test())


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "extra_body": {"top_k": 4, "min_p": 0.05}},
        {"top_p": 0.6, "stop": ["stop", "b"]},
        {"presence_penalty": 1.0, "frequency_penalty": -0.5, "logit_bias": {"3": 5, "4": -100}},
        {"extra_body": {"repetition_penalty": 1.3, "ignore_eos": True, "min_tokens": 5}},
        {"stop": "g", "extra_body": {"include_stop_str_in_output": True, "stop_token_ids": [5]}},
        {"seed": -1},
    ],
)
def test_every_parameter_reaches_the_engine(options: dict[str, Any]) -> None:
    async def test() -> None:
        async with serving() as (app, _), client(app) as api:
            reply = await api.chat.completions.create(**(OPTIONS | options))
            return_options = {k: v for k, v in options.items() if k != "extra_body"} | options.get("extra_body", {})
            if "include_stop_str_in_output" in return_options:
                return_options["include_stop"] = return_options.pop("include_stop_str_in_output")
            if "logit_bias" in return_options:
                return_options["logit_bias"] = {int(k): v for k, v in return_options["logit_bias"].items()}
            if return_options.get("seed") == -1:
                return_options["seed"] = 2**64 - 1
            want = solo(**return_options)
            assert reply.choices[0].message.content == want.text
            assert reply.choices[0].finish_reason == want.finish_reason

    run(test())


def test_a_stream_is_one_chunk_a_step_and_adds_up() -> None:
    async def test() -> None:
        async with serving() as (app, service), client(app) as api:
            options = OPTIONS | {"temperature": 0.0, "extra_body": {"sooner_pieces": True}}
            stream = await api.chat.completions.create(
                **options, n=2, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            last = chunks.pop()
            assert last.choices == []
            assert last.usage is not None
            assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
            assert len({(c.id, c.created, c.object) for c in [*chunks, last]}) == 1
            want = solo(n=2, temperature=0.0)
            figures: Any = last.model_extra
            assert len(chunks) == figures["metrics"]["speculative_decoding"]["num_steps"]
            for answer in want.choices:
                mine = [c.choices[0] for c in chunks if c.choices[0].index == answer.choice]
                assert "".join(c.delta.content or "" for c in mine) == answer.text
                assert [c.delta.role for c in mine] == ["assistant"] + [None] * (len(mine) - 1)
                assert [c.finish_reason for c in mine] == [None] * (len(mine) - 1) + [answer.finish_reason]
                extras: list[Any] = [c.model_extra for c in mine]
                pieces = [piece for extra in extras for piece in extra["sooner"]["pieces"]]
                assert [text for text, _ in pieces] == [text for text, _ in answer.pieces]
            assert figures["timings"]["predicted_n"] == last.usage.completion_tokens
            assert service.ready.driver.running == 0

    run(test())


def test_done_ends_every_stream_on_the_wire() -> None:
    async def test() -> None:
        async with serving() as (app, _), raw(app) as http:
            reply = await http.post(
                "/v1/chat/completions", json={"messages": MESSAGES, "stream": True, "max_tokens": 3}
            )
            assert reply.headers["content-type"].startswith("text/event-stream")
            events = reply.text.strip().split("\n\n")
            assert events[-1] == "data: [DONE]"
            assert all(event.startswith("data: {") for event in events[:-1])
            assert "usage" not in json.loads(events[0].removeprefix("data: "))

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_plain_decoding(stream: bool) -> None:
    async def test() -> None:
        plain = toy_engine(drafter=None).generate(MESSAGES, temperature=1.0, seed=3, max_tokens=24, logprobs=3)
        async with serving() as (app, _), client(app) as api:
            reply: Any = await api.chat.completions.create(**OPTIONS, logprobs=True, top_logprobs=3, stream=stream)
            choices = [c.choices[0] async for c in reply] if stream else reply.choices
            entries = [entry for choice in choices for entry in choice.logprobs.content]
            assert [e.logprob for e in entries] == [e.logprob for e in plain.logprobs or ()]
            assert [[t.logprob for t in e.top_logprobs] for e in entries] == [
                [logprob for _, logprob in e.top] for e in plain.logprobs or ()
            ]
            assert b"".join(bytes(e.bytes) for e in entries).decode("utf-8", "replace").startswith(plain.text[:-1])

    run(test())


def test_text_completions_take_many_prompts() -> None:
    async def test() -> None:
        async with serving() as (app, _), client(app) as api:
            reply = await api.completions.create(
                model="toy", prompt=["abc", "de"], n=2, seed=5, max_tokens=6, logprobs=2, temperature=0.8
            )
            engine = toy_engine()
            want = [
                choice
                for prompt in ("abc", "de")
                for choice in engine.generate(prompt, raw=True, n=2, seed=5, max_tokens=6, temperature=0.8).choices
            ]
            assert [c.text for c in reply.choices] == [c.text for c in want]
            assert [c.index for c in reply.choices] == [0, 1, 2, 3]
            assert (reply.object, reply.usage and reply.usage.prompt_tokens) == ("text_completion", 5)
            stream = await api.completions.create(
                model="toy", prompt=["abc", "de"], n=2, seed=5, max_tokens=6, stream=True, temperature=0.8
            )
            texts = [""] * 4
            async for chunk in stream:
                texts[chunk.choices[0].index] += chunk.choices[0].text
            assert texts == [c.text for c in want]
            ids = await api.completions.create(model="toy", prompt=[1, 2, 3], seed=5, max_tokens=6, temperature=0.8)
            assert ids.choices[0].text == engine.generate([1, 2, 3], seed=5, max_tokens=6, temperature=0.8).text

    run(test())


def test_models_health_and_version() -> None:
    async def test() -> None:
        async with serving() as (app, _), client(app) as api, raw(app) as http:
            assert [model.id async for model in await api.models.list()] == ["toy"]
            assert (await api.models.retrieve("toy")).owned_by == "sooner"
            with pytest.raises(openai.NotFoundError):
                await api.models.retrieve("some/other")
            assert (await http.get("/health")).status_code == 200
            assert (await http.get("/version")).json()["version"]

    run(test())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 100}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
    ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"9999": 1}}, "logit_bias"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"seed": 1.5}, "seed"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "a" * 600}]}, "prompt"),
    ({"max_new_tokens": 4}, "max_new_tokens"),
    ({"audio": {}}, "audio"),
    ({"functions": []}, "functions"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"more": 1}}, "stream_options.more"),
    ({"draft": "kind=corpus,path=/etc"}, "draft"),
    ({"draft": "kind=ngram,max=9999"}, "draft"),
    ({"draft": "kind=ngram,maxx=3"}, "draft"),
    ({"draft": "="}, "draft"),
    ({"prediction": {"type": "content"}}, "prediction.content"),
    ({"prediction": {"type": "content", "content": "ab"}, "draft": "ngram"}, "draft"),
]


def test_what_cannot_be_honoured_is_refused_by_name() -> None:
    async def test() -> None:
        async with serving() as (app, service), raw(app) as http:
            for body, param in REFUSED:
                reply = await http.post("/v1/chat/completions", json={"messages": MESSAGES} | body)
                assert reply.status_code == 400, (body, reply.text)
                error = reply.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert error["param"] == param, (body, error)
                assert "\n" not in error["message"]
                assert service.ready.driver.running == 0
            again = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 2})
            assert again.status_code == 200

    run(test())


def test_nulls_are_defaults_and_neutral_values_pass() -> None:
    async def test() -> None:
        async with serving() as (app, _), raw(app) as http:
            body = {"messages": MESSAGES, "seed": 3, "max_tokens": 24}
            nulls = dict.fromkeys(("n", "stop", "temperature", "logit_bias", "tools", "user", "prediction"))
            neutral = {"response_format": {"type": "text"}, "store": False, "tools": [], "tool_choice": "none"}
            replies = [await http.post("/v1/chat/completions", json=body | more) for more in ({}, nulls, neutral)]
            assert [reply.status_code for reply in replies] == [200, 200, 200]
            assert len({reply.json()["choices"][0]["message"]["content"] for reply in replies}) == 1

    run(test())


def test_the_switch_changes_the_drafter_and_no_text() -> None:
    async def test() -> None:
        more = {"max_tokens": 120, "temperature": 0.0}
        want = solo(**more, ignore_eos=True).text
        async with serving() as (app, _), client(app) as api:
            for draft in ("none", "ngram", "kind=suffix,max=4", "recycle"):
                options = OPTIONS | more | {"extra_body": {"draft": draft, "ignore_eos": True}}
                reply = await api.chat.completions.create(**options)
                assert reply.choices[0].message.content == want
                extra: Any = reply.model_extra
                figures = extra["metrics"]["speculative_decoding"]
                assert figures["drafter"] == draft.removeprefix("kind=").partition(",")[0]
                assert (figures["num_draft_tokens"] > 0) == (draft != "none")

    run(test())


def test_a_prediction_is_followed_and_counted() -> None:
    async def test() -> None:
        want = solo(temperature=0.0, max_tokens=40, ignore_eos=True, raw=False)
        async with serving() as (app, _), client(app) as api:
            options = OPTIONS | {"temperature": 0.0, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
            reply = await api.chat.completions.create(**options, prediction={"type": "content", "content": want.text})
            assert reply.choices[0].message.content == want.text
            assert reply.usage is not None
            details = reply.usage.completion_tokens_details
            assert details is not None
            assert details.accepted_prediction_tokens
            extra: Any = reply.model_extra
            drafted = extra["metrics"]["speculative_decoding"]
            assert drafted["num_accepted_draft_tokens"] >= details.accepted_prediction_tokens

    run(test())


def test_limits_are_the_operators() -> None:
    async def test() -> None:
        async with (
            serving(settings=Settings(max_n=2, max_prompt_tokens=2, max_body=1000)) as (app, _),
            raw(app) as http,
        ):
            small = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 1}
            assert (await http.post("/v1/chat/completions", json=small | {"n": 2})).status_code == 200
            assert (await http.post("/v1/chat/completions", json=small | {"n": 3})).status_code == 400
            assert (await http.post("/v1/chat/completions", json={"messages": MESSAGES})).status_code == 400
            many = {"prompt": ["a", "b", "c"], "max_tokens": 1}
            assert (await http.post("/v1/completions", json=many)).status_code == 400
            assert (await http.post("/v1/completions", json=many | {"user": "x" * 2000})).status_code == 413

    run(test())
