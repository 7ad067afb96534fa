"""Many unlike requests at once: whether each gets its solo run's text, and whether the server is then as it was.

Knows the client. Does not know how answers come about.
"""

from __future__ import annotations

import random
import time
from typing import Any

from common import prompts
from server_client import Server

AT_ONCE = 16

_SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 40}, "year": {"type": "integer"}},
    "required": ["title", "year"],
}
_FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}

_KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"stop": [".", "\n\n"]},
    {"n": 2},
    {"response_format": _FORM},
    {"draft": "none"},
    {"draft": "kind=suffix,max=6", "repetition_penalty": 1.1},
    {"top_p": 0.9, "top_k": 40, "presence_penalty": 0.5},
    {"logprobs": True, "top_logprobs": 3},
)


def mixed(number: int, part: int) -> list[dict[str, Any]]:
    """Unlike requests: temperatures, seeds, stops, schemas, n = 2, penalties, log-probabilities, plain and drafted."""
    rng = random.Random(part)
    texts = [text for group in prompts(20).values() for text in group if len(text) < 1500]
    bodies: list[dict[str, Any]] = []
    for i in range(number):
        body: dict[str, Any] = {"messages": [{"role": "user", "content": rng.choice(texts)}], "seed": i + number * part}
        body |= {"temperature": rng.choice((0.0, 0.7, 1.0)), "max_tokens": rng.choice((8, 24, 48))}
        bodies.append(body | _KINDS[i % len(_KINDS)])
    return bodies


async def load(server: Server, number: int, distinct: int, part: int = 0) -> dict[str, Any]:
    """``number`` requests, ``distinct`` different ones over and over in new company, 5 % of the callers leaving."""
    bodies = mixed(distinct, part)
    solo = await server.ask_all([body | {"draft": "none"} for body in bodies], at_once=1)
    await server.ask_all(bodies, AT_ONCE)  # caches and buffers take their size
    await server.quiet()
    before = server.held(), server.resident_mib()
    order = [i % distinct for i in range(number)]
    random.Random(part).shuffle(order)
    begin = time.perf_counter()
    answers = await server.ask_all([bodies[i] for i in order], AT_ONCE, leaving=20)
    seconds = time.perf_counter() - begin
    await server.quiet()
    after = server.held(), server.resident_mib()
    whole = [(i, answer) for at, (i, answer) in enumerate(zip(order, answers, strict=True)) if at % 20 != 19]
    differing = [i for i, answer in whole if answer.said != solo[i].said]
    return {
        "requests": number,
        "distinct": distinct,
        "at_once": AT_ONCE,
        "left_by_their_callers": number - len(whole),
        "seconds": seconds,
        "differing_from_solo": len(differing),
        "first_differing": [bodies[i] for i in differing[:3]],
        "failed": sum(answer.status >= 500 or bool(answer.error) for answer in (*answers, *solo)),
        "refused": sum(400 <= answer.status < 500 for answer in (*answers, *solo)),
        "kv_held_before_and_after": [before[0], after[0]],
        "resident_mib_before_and_after": [before[1], after[1]],
    }


def together(parts: dict[str, Any]) -> dict[str, Any]:
    """What all parts say, counts added up."""
    counted = ("requests", "left_by_their_callers", "differing_from_solo", "failed", "refused")
    return {name: sum(part[name] for part in parts.values()) for name in counted} | {
        "resident_mib_grown_most": max(
            after - before for before, after in (part["resident_mib_before_and_after"] for part in parts.values())
        ),
        "kv_held_at_an_end": max(part["kv_held_before_and_after"][1] for part in parts.values()),
    }
