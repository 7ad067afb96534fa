"""The server's figures on the default model, its load generator on loopback. One part at a time:

``python benchmarks/server.py load [--part K] [--requests N]``: mixed requests at concurrency 16, every answer against
its solo run. Without ``--part`` the next of the four that is not there yet.
``python benchmarks/server.py speed [--at N]``: tokens per second and time to the first token, drafting against
``draft: none`` on the same server, in turns; at concurrency 1, 4, 8 and 16, or at one of them.
``python benchmarks/server.py overhead``: what HTTP adds to a chunk.
``python benchmarks/server.py peers``: against llama.cpp's server and OpenVINO GenAI's continuous batching, in turns.

``--small`` is a quick look of which nothing is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from common import RESULTS, keep
from server_client import running
from server_load import AT_ONCE, load, together
from server_speed import overhead, speed

CONCURRENCY = (1, 4, 8, 16)
PARTS = 4


def main() -> None:
    """Measure the part asked for, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["load", "speed", "overhead", "peers"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--part", type=int, choices=range(PARTS))
    parser.add_argument("--requests", type=int, default=500, help="of a part of load")
    parser.add_argument("--at", type=int, choices=CONCURRENCY)
    parser.add_argument("--seconds", type=float, default=None, help="of each level of speed or peers")
    given = parser.parse_args()
    measure = {"load": _load, "speed": _speed, "overhead": _overhead, "peers": _peers}[given.what]
    name = f"server-{given.what}"
    found = measure(given, _kept(name))
    print(json.dumps(found, indent=1))
    if not given.small:
        print(keep(name, found), file=sys.stderr)


def _load(given: argparse.Namespace, kept: dict[str, Any]) -> dict[str, Any]:
    parts = {} if given.small else dict(kept.get("parts", {}))
    missing = [part for part in range(PARTS) if str(part) not in parts]
    part = given.part if given.part is not None else missing[0] if missing else 0
    number, distinct = (48, 16) if given.small else (given.requests, max(1, given.requests // 5))
    with running("--max-running", str(AT_ONCE), "--no-memory") as server:
        parts[str(part)] = asyncio.run(load(server, number, distinct, part))
    return {"together": together(parts), "parts": parts}


def _speed(given: argparse.Namespace, kept: dict[str, Any]) -> dict[str, Any]:
    found = {} if given.small else {name: kept[name] for name in map(str, CONCURRENCY) if name in kept}
    levels = CONCURRENCY if given.at is None else (given.at,)
    seconds = given.seconds if given.seconds is not None else 0.0 if given.small else 50.0 if len(levels) > 1 else 200.0
    with running("--max-running", str(max(CONCURRENCY)), "--no-memory") as server:
        for level in levels:
            found[str(level)] = asyncio.run(speed(server, level, seconds, 16 if given.small else 128))
    return found


def _overhead(given: argparse.Namespace, kept: dict[str, Any]) -> dict[str, Any]:
    return overhead(2, 40) if given.small else overhead(12, 256)


def _peers(given: argparse.Namespace, kept: dict[str, Any]) -> dict[str, Any]:
    from server_peers import peers

    seconds = given.seconds if given.seconds is not None else 0.0 if given.small else 80.0
    return peers(seconds, 16 if given.small else 96, 1 if given.small else 2)


def _kept(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


if __name__ == "__main__":
    main()
