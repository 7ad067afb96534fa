"""This server against llama.cpp's and OpenVINO GenAI's continuous batching: one model, the same prompts, in turns.

Knows how each is asked. Does not know how any of them decodes. Every one is given the same token ids and writes as many
tokens, whatever they say; the price of row invariance is in the figures, and so is whether the others have it.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from common import prompts
from server_client import TEXT, Server, running

import sooner
from sooner.bench import ratio
from sooner.bench.summary import ratio_dict
from sooner.store import resolve
from sooner.store.default import default_gguf

sys.path.append(str(Path(__file__).parent / "peers"))
from peers_catalogue import PEERS
from peers_install import install, obstacle, python_of

HERE = Path(__file__).parent
PLACES = 8
CONTEXT = 1024
OWN, PLAIN, LLAMA, GENAI = "sooner", "sooner, drafting off", "llama.cpp", "openvino-genai"

Ids = Sequence[int]
Ask = Callable[[Sequence[Ids], int, int], Awaitable[tuple[float, list[Any]]]]
"""Prompts, tokens for each and how many at once, to the seconds that all took and what each was answered."""


def peers(seconds: float, tokens: int, sets: int) -> dict[str, Any]:
    """Rounds of ``PLACES`` requests: ``sets`` of them alone, then all at once, for about ``seconds`` each."""
    with ExitStack() as stack:
        asks = _asks(stack)
        return asyncio.run(_measured(asks, seconds, tokens, sets))


async def _measured(asks: dict[str, Ask], seconds: float, tokens: int, sets: int) -> dict[str, Any]:
    rounds = _rounds(sets)
    solo: dict[str, list[Any]] = {name: [] for name in asks}
    for ask in asks.values():  # warms up
        await ask(rounds[0][:2], 8, 2)
    alone: dict[str, list[float]] = {name: [] for name in asks}
    until = time.perf_counter() + seconds
    singles = [[prompt] for prompts in rounds for prompt in prompts]
    for turn, single in enumerate(singles):
        if turn >= PLACES and time.perf_counter() > until:
            break
        for name in _turned(asks, turn):
            spent, texts = await asks[name](single, tokens, 1)
            alone[name].append(spent)
            solo[name] += texts
    rounds = rounds[: len(solo[OWN]) // PLACES]
    batched: dict[str, list[float]] = {name: [] for name in asks}
    equal = dict.fromkeys(asks, 0)
    turn = 0
    until = time.perf_counter() + seconds
    while turn < 2 or time.perf_counter() < until:
        which = turn % len(rounds)
        for name in _turned(asks, turn):
            spent, texts = await asks[name](rounds[which], tokens, PLACES)
            batched[name].append(spent)
            want = solo[name][which * PLACES : (which + 1) * PLACES]
            equal[name] += sum(a == b for a, b in zip(texts, want, strict=True))
        turn += 1
    return {
        "tokens": tokens,
        "at_1": _figures(alone, tokens),
        f"at_{PLACES}": _figures(batched, tokens * PLACES),
        "answers_at_once": turn * PLACES,
        "equal_to_their_own_solo_answers": equal,
    }


def _figures(times: dict[str, list[float]], tokens: int) -> dict[str, Any]:
    return {
        "rounds": len(times[OWN]),
        "tokens_per_second": {name: tokens * len(spent) / sum(spent) for name, spent in times.items()},
        "sooner_over": {name: ratio_dict(ratio(spent, times[OWN])) for name, spent in times.items() if name != OWN},
        "plain_over": {
            name: ratio_dict(ratio(spent, times[PLAIN])) for name, spent in times.items() if name in (LLAMA, GENAI)
        },
    }


def _turned(asks: dict[str, Ask], turn: int) -> list[str]:
    """All names, each round beginning with another."""
    names = list(asks)
    return names[turn % len(names) :] + names[: turn % len(names)]


def _rounds(sets: int) -> list[list[list[int]]]:
    """``sets`` times `PLACES` prompts as ids, the categories mixed."""
    engine = sooner.load(draft=None, warm=False)
    texts = [text for group in prompts(8).values() for text in group if len(text) < 2000]
    random.Random(3).shuffle(texts)
    ids = [list(engine.request(text).prompt) for text in texts[: sets * PLACES]]
    return [ids[i : i + PLACES] for i in range(0, len(ids), PLACES)]


def _asks(stack: ExitStack) -> dict[str, Ask]:
    """The servers, started one after another."""
    own = stack.enter_context(running("--max-running", str(PLACES), "--no-memory"))
    turns = iter(range(10**9))

    def ours(**more: Any) -> Ask:
        return lambda ids, tokens, at_once: _asked(own, ids, tokens, at_once, cache_salt=str(next(turns)), **more)

    llama = stack.enter_context(_llama())
    genai = stack.enter_context(_genai())
    return {
        OWN: ours(),
        PLAIN: ours(draft="none"),
        LLAMA: lambda ids, tokens, at_once: _asked(llama, ids, tokens, at_once, cache_prompt=False),
        GENAI: genai,
    }


async def _asked(server: Server, ids: Sequence[Ids], tokens: int, at_once: int, **more: Any) -> tuple[float, list[Any]]:
    same = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    begin = time.perf_counter()
    answers = await server.ask_all([{"prompt": list(p), **same, **more} for p in ids], at_once, path=TEXT)
    spent = time.perf_counter() - begin
    for answer in answers:
        if answer.status != 200 or answer.error or answer.usage["completion_tokens"] != tokens:
            raise RuntimeError(f"not the answer asked for: {answer}")
    return spent, [answer.texts[0] for answer in answers]


@contextmanager
def _llama() -> Iterator[Server]:
    peer = next(peer for peer in PEERS if peer.name == LLAMA)
    install(peer)
    if (why := obstacle(peer)) is not None:
        raise RuntimeError(why)
    arguments = [default_gguf(offline=True, say=lambda line: None), PLACES, CONTEXT]
    with _worker([str(python_of(peer)), str(HERE / "server_llamacpp.py"), *map(str, arguments)]) as worker:
        assert worker.stdout is not None
        yield Server(int(worker.stdout.readline().rstrip("/\n").rpartition(":")[2]), worker.pid)


@contextmanager
def _genai() -> Iterator[Ask]:
    with _worker([sys.executable, str(HERE / "server_genai.py"), str(resolve().folder)]) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdout.readline()  # it is ready

        async def ask(ids: Sequence[Ids], tokens: int, at_once: int) -> tuple[float, list[Any]]:
            assert worker.stdin is not None
            assert worker.stdout is not None
            work = {"prompts": [list(p) for p in ids], "tokens": tokens, "at_once": at_once}
            worker.stdin.write(json.dumps(work) + "\n")
            worker.stdin.flush()
            found = json.loads(worker.stdout.readline())
            if any(len(text) != tokens for text in found["texts"]):
                raise RuntimeError("not as many tokens as asked for")
            return found["seconds"], found["texts"]

        yield ask


@contextmanager
def _worker(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that ends when its input does."""
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield worker
    finally:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait(timeout=60)
