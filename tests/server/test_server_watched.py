"""What a server says of itself: counters that add up to its replies, and logs without anybody's text."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from serving import MESSAGES, client, raw, serving, toy_engine
from test_server_lives import BODY, Slow, run, settled

from sooner.server import Settings


def test_the_counters_are_the_sum_of_the_replies() -> None:
    async def test() -> None:
        async with serving() as (app, _), client(app) as api, raw(app) as http:
            sums = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
            tokens = prompts = 0
            positions: dict[int, int] = {}
            for seed in range(6):
                reply: Any = await api.chat.completions.create(
                    model="toy", messages=MESSAGES, seed=seed, max_tokens=40, n=1 + seed % 2, temperature=0.5
                )
                figures = reply.model_extra["metrics"]["speculative_decoding"]
                sums["drafts"] += figures["num_spec_steps"]
                sums["draft_tokens"] += figures["num_draft_tokens"]
                sums["accepted_tokens"] += figures["num_accepted_draft_tokens"]
                histogram = figures["acceptance_histogram"]
                assert sum(histogram) == figures["num_spec_steps"]
                assert sum(k * count for k, count in enumerate(histogram)) == figures["num_accepted_draft_tokens"]
                for kept, count in enumerate(histogram):
                    for position in range(kept if count else 0):
                        positions[position] = positions.get(position, 0) + count
                tokens += reply.usage.completion_tokens
                prompts += reply.usage.prompt_tokens
                cut = figures["num_steps"] + figures["num_accepted_draft_tokens"] - reply.usage.completion_tokens
                assert 0 <= cut <= 1 + seed % 2  # a text may end on a drafted token
            text = (await http.get("/metrics")).text
            for name, value in sums.items():
                assert f'sooner:spec_decode_num_{name}_total{{drafter="tree",model_name="toy"}} {float(value)}' in text
            for position, count in positions.items():
                labels = f'{{drafter="tree",model_name="toy",position="{position}"}}'
                assert f"sooner:spec_decode_num_accepted_tokens_per_pos_total{labels} {float(count)}" in text
            assert f'sooner:generation_tokens_total{{model_name="toy"}} {float(tokens)}' in text
            assert f'sooner:prompt_tokens_total{{model_name="toy"}} {float(prompts)}' in text
            assert 'sooner:num_requests_running{model_name="toy"} 0.0' in text
            assert f'sooner:time_to_first_token_seconds_count{{model_name="toy"}} {9.0}' in text
            assert 'sooner:request_success_total{finished_reason="stop",model_name="toy"}' in text

    run(test())


def test_no_prompt_reaches_the_log_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    async def test(settings: Settings) -> str:
        caplog.clear()
        with caplog.at_level(logging.DEBUG, logger="sooner"):
            async with serving(settings=settings) as (app, _), raw(app) as http:
                for body in (BODY | {"max_tokens": 9}, BODY | {"temperature": -1}, {"messages": "abcdefgh"}):
                    await http.post("/v1/chat/completions", json=body | {"user": "hgfedcba"})
        return caplog.text

    assert "hgfedcba" not in asyncio.run(test(Settings(report_s=0.01)))
    assert "hgfedcba" in asyncio.run(test(Settings(log_prompts=True)))


def test_a_line_is_logged_under_load_and_none_without(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving(toy_engine(Slow()), Settings(report_s=0.05)) as (app, service), raw(app) as http:
            await http.post("/v1/chat/completions", json=BODY | {"max_tokens": 60})
            await settled(service)
            await asyncio.sleep(0.12)
            before = len(caplog.records)
            await asyncio.sleep(0.15)
            assert len(caplog.records) == before

    with caplog.at_level(logging.INFO, logger="sooner.server"):
        run(test())
    lines = [record.message for record in caplog.records if record.message.startswith("running")]
    assert lines
    assert any("acceptance length" in line and "tokens/s" in line for line in lines)
