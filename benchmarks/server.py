"""The server's figures on the default model, its load generator on loopback.

``python benchmarks/server.py [load|speed|overhead|all] [--small]``

load: mixed requests at concurrency 16, every answer against its solo run; speed: tokens per second and time to the
first token, drafting against ``draft: none`` on the same server, in turns; overhead: what HTTP adds to a chunk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.request import urlopen

from common import keep, prompts
from server_client import Answer, Server, running

import sooner
from sooner.bench import ratio

SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 40}, "year": {"type": "integer"}},
    "required": ["title", "year"],
}
CONCURRENCY = (1, 4, 8, 16)


def mixed(number: int) -> list[dict[str, Any]]:
    """Unlike requests: temperatures, seeds, stops, schemas, n = 2, penalties, plain and drafted ones."""
    rng = random.Random(7)
    texts = [text for group in prompts(20).values() for text in group if len(text) < 1500]
    bodies: list[dict[str, Any]] = []
    for i in range(number):
        body: dict[str, Any] = {"messages": [{"role": "user", "content": rng.choice(texts)}], "seed": i}
        body |= {"temperature": rng.choice((0.0, 0.7, 1.0)), "max_tokens": rng.choice((8, 24, 48))}
        kind = i % 8
        more: dict[int, dict[str, Any]] = {
            1: {"stop": [".", "\n\n"]},
            2: {"n": 2},
            3: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            4: {"draft": "none"},
            5: {"draft": "kind=suffix,max=6", "repetition_penalty": 1.1},
            6: {"top_p": 0.9, "top_k": 40, "presence_penalty": 0.5},
        }
        bodies.append(body | more.get(kind, {}))
    return bodies


async def load(server: Server, number: int, distinct: int) -> dict[str, Any]:
    """``number`` requests, ``distinct`` different ones over and over in new company, 5 % of the callers leaving."""
    bodies = mixed(distinct)
    solo = await server.ask_all([body | {"draft": "none"} for body in bodies], at_once=1)
    await server.ask_all(bodies, at_once=16)  # caches and buffers take their size
    await server.quiet()
    before = server.metrics(), server.resident_mib()
    order = [i % distinct for i in range(number)]
    random.Random(1).shuffle(order)
    begin = time.perf_counter()
    answers = await server.ask_all([bodies[i] for i in order], at_once=16, leaving=20)
    seconds = time.perf_counter() - begin
    await server.quiet()
    after = server.metrics(), server.resident_mib()
    whole = [(i, answer) for at, (i, answer) in enumerate(zip(order, answers, strict=True)) if at % 20 != 19]
    differing = [i for i, a in whole if (a.texts, a.reasons) != (solo[i].texts, solo[i].reasons)]
    used = [
        sum(v for k, v in found.items() if k.startswith("sooner:kv_cache_usage_perc")) for found, _ in (before, after)
    ]
    return {
        "requests": number,
        "distinct": distinct,
        "left_by_their_callers": number - len(whole),
        "seconds": seconds,
        "differing_from_solo": len(differing),
        "first_differing": differing[:5],
        "failed": sum(answer.status >= 500 or bool(answer.error) for answer in answers),
        "refused": sum(400 <= answer.status < 500 for answer in answers),
        "kv_held_before_and_after": used,
        "resident_mib_before_and_after": [before[1], after[1]],
    }


async def speed(server: Server, rounds: int, tokens: int) -> dict[str, Any]:
    """Drafted and plain in turns on the same prompts: total tokens over total time by concurrency, TTFT p95."""
    texts = [text for group in prompts(4).values() for text in group if len(text) < 2000]
    found: dict[str, Any] = {}
    for at_once in CONCURRENCY:
        times: dict[str, list[float]] = {"drafted": [], "plain": []}
        firsts: dict[str, list[float]] = {"drafted": [], "plain": []}
        written = 0
        for turn in range(rounds + 1):
            chosen = [texts[(turn * at_once * 2 + i) % len(texts)] for i in range(at_once * 2)]
            for name in ("drafted", "plain") if turn % 2 else ("plain", "drafted"):
                extra = {"draft": "none"} if name == "plain" else {}
                bodies = [_greedy(text, tokens, f"{name}{turn}") | extra for text in chosen]
                begin = time.perf_counter()
                answers = await server.ask_all(bodies, at_once)
                if turn:  # the first round warms up
                    times[name].append(time.perf_counter() - begin)
                    firsts[name] += [answer.ttft for answer in answers]
                    written += _tokens(answers) if name == "plain" else 0
        gain = ratio(times["plain"], times["drafted"])
        found[str(at_once)] = {
            "drafted_tokens_per_second": written / sum(times["drafted"]),
            "plain_tokens_per_second": written / sum(times["plain"]),
            "speed_up": {"ratio": gain.value, "low": gain.low, "high": gain.high, "text": str(gain)},
            "ttft_p95_ms": {name: 1e3 * _p95(values) for name, values in firsts.items()},
        }
    return found


def _greedy(text: str, tokens: int, salt: str) -> dict[str, Any]:
    """``salt`` keeps rounds from finding each other's prompts and texts in the cache."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": tokens}
    return body | {"ignore_eos": True, "cache_salt": salt}


def _tokens(answers: Sequence[Answer]) -> int:
    return sum(int(answer.usage["completion_tokens"]) for answer in answers)


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def overhead(rounds: int, tokens: int) -> dict[str, Any]:
    """Milliseconds that HTTP adds to a chunk: the same engine in this process, streamed directly and by the server.

    ``processor_ms``: what the server's own thread spends, the one figure that neither client nor engine is in.
    """
    from sooner.server import Service, Settings
    from sooner.server.host import bind, serve

    engine = sooner.load(draft=None)
    service = Service(lambda: engine, Settings())
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    thread = threading.Thread(target=serve, args=(service, sock))
    thread.start()
    server = Server(port, None)  # type: ignore[arg-type]  # only asked
    message = [{"role": "user", "content": "Why is the sky blue?"}]
    added: list[float] = []
    own: list[float] = []
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    try:
        _wait(port)
        for turn in range(rounds + 1):
            begin = time.perf_counter()
            steps = sum(1 for _ in engine.stream(message, max_tokens=tokens, ignore_eos=True))
            direct = time.perf_counter() - begin
            begin, spent = time.perf_counter(), time.clock_gettime(clock)
            answer = asyncio.run(server.ask(_greedy(message[0]["content"], tokens, "")))
            served, spent = time.perf_counter() - begin, time.clock_gettime(clock) - spent
            assert len(answer.at) == steps + 1
            if turn:
                added.append(1e3 * (served - direct) / steps)
                own.append(1e3 * spent / steps)
    finally:
        service.on_failure()
        thread.join()
    return {
        "added_ms_per_chunk_median": statistics.median(added),
        "processor_ms_per_chunk_median": statistics.median(own),
        "added_ms_per_chunk": added,
    }


def _wait(port: int) -> None:
    for _ in range(600):
        try:
            with urlopen(f"http://127.0.0.1:{port}/health"):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="all", choices=["load", "speed", "overhead", "all"])
    parser.add_argument("--small", action="store_true", help="a quick look; nothing is kept")
    given = parser.parse_args()
    small = given.small
    found: dict[str, Any] = {}
    if given.what in ("overhead", "all"):
        found["overhead"] = overhead(2, 40) if small else overhead(12, 256)
    for name in ("load", "speed"):
        if given.what in (name, "all"):
            with running("--max-running", "16", "--no-memory") as server:
                if name == "load":
                    found[name] = asyncio.run(load(server, 60 if small else 2000, 16 if small else 200))
                else:
                    found[name] = asyncio.run(speed(server, 1 if small else 8, 32 if small else 128))
    for name, figures in found.items():
        print(name, json.dumps(figures, indent=1))
        if not small:
            print(keep(f"server-{name}", figures), file=sys.stderr)


if __name__ == "__main__":
    main()
