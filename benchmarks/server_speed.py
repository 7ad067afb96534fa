"""How fast the server is: drafting against plain decoding on one server, and what HTTP adds to a chunk.

Knows the client and, for HTTP's share, the engine itself. Does not know peers.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.request import urlopen

import numpy as np
from common import prompts
from server_client import Answer, Server

import sooner
from sooner.bench import ratio
from sooner.bench.summary import ratio_dict

_ORDERS = (("drafted", "plain"), ("plain", "drafted"))


async def speed(server: Server, at_once: int, seconds: float, tokens: int) -> dict[str, Any]:
    """Drafted and plain in turns on the same prompts for ``seconds``: total tokens over total time, and TTFT.

    A round is one request a caller and a mode; the first warms up.
    """
    texts = [text for group in prompts(4).values() for text in group if len(text) < 2000]
    times: dict[str, list[float]] = {"drafted": [], "plain": []}
    firsts: dict[str, list[float]] = {"drafted": [], "plain": []}
    written = differing = turn = 0
    until = time.perf_counter() + seconds
    while turn < 2 or time.perf_counter() < until:
        chosen = [texts[(turn * at_once + i) % len(texts)] for i in range(at_once)]
        said: dict[str, list[Answer]] = {}
        for name in _ORDERS[turn % 2]:
            extra = {"draft": "none"} if name == "plain" else {}
            bodies = [greedy(text, tokens, f"{name}{turn}") | extra for text in chosen]
            begin = time.perf_counter()
            said[name] = await server.ask_all(bodies, at_once)
            if turn:
                times[name].append(time.perf_counter() - begin)
                firsts[name] += [answer.ttft for answer in said[name]]
        if turn:
            written += sum(int(answer.usage["completion_tokens"]) for answer in said["plain"])
        differing += sum(a.said != b.said for a, b in zip(said["plain"], said["drafted"], strict=True))
        turn += 1
    return {
        "rounds": turn - 1,
        "drafted_tokens_per_second": written / sum(times["drafted"]),
        "plain_tokens_per_second": written / sum(times["plain"]),
        "speed_up": ratio_dict(ratio(times["plain"], times["drafted"])),
        "ttft_p95_ms": {name: 1e3 * float(np.percentile(values, 95)) for name, values in firsts.items()},
        "ttft_p95_ratio": _p95_ratio(firsts["drafted"], firsts["plain"]),
        "texts_differing": differing,
    }


def greedy(text: str, tokens: int, salt: str) -> dict[str, Any]:
    """``salt`` keeps rounds from finding each other's prompts and texts in the cache."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": tokens}
    return body | {"ignore_eos": True, "cache_salt": salt}


def _p95_ratio(own: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """The 95th percentile of one over the other's, requests resampled in pairs."""
    a, b = np.asarray(own), np.asarray(base)
    picks = np.random.default_rng(0).integers(0, len(a), size=(2000, len(a)))
    found = np.percentile(a[picks], 95, axis=1) / np.percentile(b[picks], 95, axis=1)
    low, high = np.percentile(found, [2.5, 97.5])
    return {"value": float(np.percentile(a, 95) / np.percentile(b, 95)), "low": float(low), "high": float(high)}


def overhead(rounds: int, tokens: int) -> dict[str, Any]:
    """Milliseconds that HTTP adds to a chunk: the same engine in this process, streamed directly and by the server.

    ``processor_ms``: what the server's own thread spends, the one figure that neither client nor engine is in.
    """
    from sooner.server import Service, Settings
    from sooner.server.host import bind, serve

    engine = sooner.load(draft=None)
    service = Service(lambda: engine, Settings())
    sock = bind("127.0.0.1", 0)
    server = Server(sock.getsockname()[1])
    thread = threading.Thread(target=serve, args=(service, sock))
    thread.start()
    message = [{"role": "user", "content": "Why is the sky blue?"}]
    added: list[float] = []
    own: list[float] = []
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    try:
        _wait(server.port)
        for turn in range(rounds + 1):
            begin = time.perf_counter()
            steps = sum(1 for _ in engine.stream(message, max_tokens=tokens, ignore_eos=True))
            direct = time.perf_counter() - begin
            begin, spent = time.perf_counter(), time.clock_gettime(clock)
            answer = asyncio.run(server.ask(greedy(message[0]["content"], tokens, "")))
            served, spent = time.perf_counter() - begin, time.clock_gettime(clock) - spent
            assert len(answer.at) == steps + 1
            if turn:
                added.append(1e3 * (served - direct) / steps)
                own.append(1e3 * spent / steps)
    finally:
        service.on_failure()
        thread.join()
    return {
        "rounds": rounds,
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
