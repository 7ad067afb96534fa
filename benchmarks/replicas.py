"""Two engines on two cores: whether a death loses a request, whether conversations stay, and what a batch gains.

    python benchmarks/replicas.py lost     1,000 requests, one replica killed twice, against single-process answers
    python benchmarks/replicas.py share    follow-up turns that reach their replica, at half load
    python benchmarks/replicas.py batch    `sooner batch` over 200 prompts, drafting against plain, in turns

The first two need the extra `ray`. Knows the deployment, HTTP and the engine. Does not know how a request is routed.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

from common import keep, prompts

import sooner
from sooner.bench import ratio
from sooner.bench.summary import ratio_dict
from sooner.engine import Engine
from sooner.jobs import Answered, Job, answer_all
from sooner.types import Sampling

_CHUNK = 20
"""Prompts that one way of decoding answers before it is the other's turn."""

_TOKENS = {"lost": 16, "share": 16, "batch": 64}
"""Of an answer at most: the first two count requests, the last one times what is written."""


def texts(number: int, longest: int = 600) -> list[str]:
    """The first turns of Spec-Bench, one category after another."""
    groups = [[text for text in group if len(text) < longest] for group in prompts(40, evaluation_only=False).values()]
    rows = range(max(len(group) for group in groups))
    mixed = [group[row] for row in rows for group in groups if row < len(group)]
    return [mixed[i % len(mixed)] for i in range(number)]


def post(url: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """(Replica, reply) of a request; the replica is "" for one that failed."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            return response.headers["x-sooner-replica"], json.load(response)
    except urllib.error.HTTPError as error:
        return "", json.load(error)


@contextmanager
def deployment(model: str | None, replicas: int) -> Iterator[str]:
    """The address of ``replicas`` engines with one core each."""
    import ray
    from ray import serve

    from sooner.integrations.ray import app
    from sooner.integrations.ray_cluster import connect
    from sooner.integrations.ray_host import deploy
    from sooner.server import Settings

    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    connect(replicas)
    try:
        deploy(partial(app, Settings(), model=model, replicas=replicas, cpus=1), "127.0.0.1", port)
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def lost(arguments: argparse.Namespace) -> dict[str, Any]:
    """Requests without an answer, and answers that are not the single process's, while a replica is killed twice."""
    import ray

    asked = texts(arguments.distinct)
    bodies = [_body(text, arguments.tokens, seed) for seed, text in enumerate(asked)]
    engine = sooner.load(arguments.model, draft=None, threads=1)
    alone = [
        engine.generate([{"role": "user", "content": text}], _sampling(arguments.tokens, seed))
        for seed, text in enumerate(asked)
    ]
    del engine
    order = [i % len(bodies) for i in range(arguments.requests)]
    random.Random(0).shuffle(order)
    deaths = [len(order) // 3, 2 * len(order) // 3]
    failed = differing = 0
    served: Counter[str] = Counter()
    killed: list[str] = []
    with deployment(arguments.model, 2) as url, ThreadPoolExecutor(16) as pool:
        begin = time.perf_counter()
        for done, (number, (home, reply)) in enumerate(
            zip(order, pool.map(lambda i: post(url, bodies[i]), order), strict=True)
        ):
            served[home] += 1
            failed += not home
            differing += bool(home) and reply["choices"][0]["message"]["content"] != alone[number].text
            if deaths and done >= deaths[0] and home and home not in killed:
                deaths.pop(0)
                ray.kill(ray.get_actor(f"SERVE_REPLICA::sooner#Replica#{home}", namespace="serve"))
                killed.append(home)
        seconds = time.perf_counter() - begin
    return {
        "requests": len(order),
        "distinct": len(bodies),
        "killed": len(killed),
        "lost": failed,
        "differing": differing,
        "by_replica": sorted(served.values()),
        "seconds": seconds,
    }


def share(arguments: argparse.Namespace) -> dict[str, Any]:
    """The share of follow-up turns that the replica of the first turn answered, with eight conversations at a time:
    half of what two replicas decode side by side."""
    stayed = followed = 0
    homes: Counter[str] = Counter()

    def talk(text: str) -> list[str]:
        said = [{"role": "user", "content": text}]
        found = []
        for _ in range(arguments.turns):
            home, reply = post(url, {"messages": said, "max_tokens": arguments.tokens, "temperature": 0})
            answered = reply["choices"][0]["message"]
            said += [{"role": "assistant", "content": answered["content"]}, {"role": "user", "content": "Go on."}]
            found.append(home)
        return found

    with deployment(arguments.model, 2) as url, ThreadPoolExecutor(8) as pool:
        for found in pool.map(talk, texts(arguments.conversations, 300)):
            homes[found[0]] += 1
            stayed += sum(home == found[0] for home in found[1:])
            followed += len(found) - 1
    return {"followed": followed, "stayed": stayed, "share": stayed / followed, "homes": sorted(homes.values())}


def batch(arguments: argparse.Namespace) -> dict[str, Any]:
    """The work of ``sooner batch`` with its drafters and without, ``_CHUNK`` prompts each in turns."""
    opening = partial(sooner.load, arguments.model, max_running=4)  # as the command
    engines = {"drafted": opening(), "plain": opening(draft=None)}
    asked = texts(arguments.prompts, 2000)
    times: dict[str, list[float]] = {"drafted": [], "plain": []}
    tokens = differing = 0
    for engine in engines.values():
        _answers(engine, asked[:4], arguments.tokens)
    for turn, at in enumerate(range(0, len(asked), _CHUNK)):
        found: dict[str, list[Answered]] = {}
        for name in ("drafted", "plain") if turn % 2 else ("plain", "drafted"):
            begin = time.perf_counter()
            found[name] = _answers(engines[name], asked[at : at + _CHUNK], arguments.tokens)
            times[name].append(time.perf_counter() - begin)
        pairs = list(zip(found["drafted"], found["plain"], strict=True))
        tokens += sum(plain.completion.usage.completion_tokens for _, plain in pairs)
        differing += sum(a.completion.token_ids != b.completion.token_ids for a, b in pairs)
    return {
        "prompts": len(asked),
        "tokens": tokens,
        "differing": differing,
        "tokens_per_second": {name: tokens / sum(taken) for name, taken in times.items()},
        "speed_up": ratio_dict(ratio(times["plain"], times["drafted"])),
    }


def _answers(engine: Engine, asked: Sequence[str], tokens: int) -> list[Answered]:
    jobs = [Job(line, "", text) for line, text in enumerate(asked, 1)]
    found = list(answer_all(engine, jobs, Sampling(max_tokens=tokens, temperature=0), ahead=32))
    return [outcome for outcome in found if isinstance(outcome, Answered)]


def _sampling(tokens: int, seed: int) -> Sampling:
    return Sampling(max_tokens=tokens, seed=seed, temperature=0.8 if seed % 2 else 0.0)


def _body(text: str, tokens: int, seed: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": tokens, "seed": seed, "temperature": 0.8 if seed % 2 else 0.0}


def main() -> None:
    """Measure the parts that are named, or all."""
    parts = {"lost": lost, "share": share, "batch": batch}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="of lost, share, batch (default: all)")
    parser.add_argument("--model")
    for name, default in (("requests", 1000), ("distinct", 50), ("conversations", 40), ("turns", 4), ("prompts", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, help=f"default: {_TOKENS}")
    given = parser.parse_args()
    for part in given.parts or parts:
        if part not in parts:
            parser.error(f"no part {part!r}: {', '.join(parts)}")
        if part != "batch" and find_spec("ray") is None:
            print(f'{part} needs pip install "sooner[ray]"; it is not measured', file=sys.stderr)
            continue
        arguments = argparse.Namespace(**vars(given) | {"parts": part, "tokens": given.tokens or _TOKENS[part]})
        result = {"options": vars(arguments), **parts[part](arguments)}
        print(json.dumps(result, indent=1))
        print(keep(f"replicas_{part}", result))


if __name__ == "__main__":
    main()
