"""A SIMULATION, not a measurement: many replicas, conversations of several turns, and where their turns go.

    python benchmarks/affinity_simulation.py                     arrivals of data/azure-conversations.csv, as recorded
    python benchmarks/affinity_simulation.py --arrivals FILE     of another such file: TIMESTAMP, ContextTokens and
                                                                 GeneratedTokens, as Azure publishes them
    python benchmarks/affinity_simulation.py --arrivals poisson  arrivals at random

The routing is the deployment's own function; replicas are queues with as many places as they decode side by side, and
their passes take longer the more places are taken. To what conversations a trace's requests belong was not recorded:
each follows on an open one at random. Knows queues and the routing rule. Does not know engines.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from common import keep

from sooner.integrations.ray_affinity import ranked

TRACE = Path(__file__).parent / "data" / "azure-conversations.csv"
PLACES = 8
PASS_S, PASS_MORE_S, PREFILL_S = 0.010, 0.0015, 0.0006
"""Seconds of a pass with one text, of each further text in it, and of a prompt token that is not in the cache. They are
assumptions of the simulation, of the size of a small model's on a few cores."""

RULES = {"affinity": (PLACES, PLACES // 4), "patient": (PLACES, PLACES), "load": (0, 0), "hash": (10**9, 0)}
"""What `ranked` is told of (places, slack): as deployed; a longer queue at home; the shortest queue; home, whatever
its queue."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when (seconds from the first), its prompt's and its answer's tokens."""

    at: float
    prompt: int
    answer: int


def recorded(path: Path) -> list[Arrival]:
    """The arrivals of a CSV file."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        Arrival((time - times[0]).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for time, row in zip(times, rows, strict=True)
    ]


def drawn(number: int, rng: random.Random) -> list[Arrival]:
    """Arrivals at random, one a second."""
    at, found = 0.0, []
    for _ in range(number):
        at += rng.expovariate(1.0)
        found.append(Arrival(at, round(rng.lognormvariate(6, 0.8)), 1 + round(rng.expovariate(1 / 120))))
    return found


@dataclass
class Fleet:
    """Replicas, the requests at each, and the conversations that each has the prefix of."""

    loads: dict[str, int]
    knows: dict[str, set[str]] = field(default_factory=dict)
    ends: list[tuple[float, str]] = field(default_factory=list)

    def run(self, replica: str, conversation: str, arrival: Arrival) -> tuple[float, bool]:
        """Take a request; returns its time to the first token and whether its prefix was there."""
        known = conversation in self.knows.setdefault(replica, set())
        self.knows[replica].add(conversation)
        load = self.loads[replica]
        width = min(load + 1, PLACES)
        each = PASS_S + PASS_MORE_S * (width - 1)
        waits = sorted(end for end, name in self.ends if name == replica)[: max(0, load + 1 - PLACES)]
        start = max(arrival.at, waits[-1]) if waits else arrival.at
        first = start + PREFILL_S * arrival.prompt * (0.1 if known else 1.0) + each
        self.loads[replica] += 1
        heapq.heappush(self.ends, (first + each * arrival.answer, replica))
        return first - arrival.at, known

    def pass_time(self, now: float) -> None:
        """End what has ended by ``now``."""
        while self.ends and self.ends[0][0] <= now:
            self.loads[heapq.heappop(self.ends)[1]] -= 1


def conversations(number: int, follow: float, rng: random.Random) -> Iterator[tuple[str, bool]]:
    """(Conversation, whether it is a further turn) for each request."""
    recent: list[str] = []
    for i in range(number):
        if recent and rng.random() < follow:
            yield rng.choice(recent[-200:]), True
        else:
            recent.append(f"conversation {i}")
            yield recent[-1], False


def simulate(arrivals: Sequence[Arrival], rule: str, rate: float, *, replicas: int, follow: float) -> dict[str, float]:
    """Where requests go under a rule of `RULES`.

    ``rate``: how many times as fast as recorded the requests come.
    """
    rng = random.Random(0)
    fleet = Fleet({f"replica {i}": 0 for i in range(replicas)})
    places, slack = RULES[rule]
    homes: dict[str, str] = {}
    stayed = followed = 0
    firsts, busy = [], []
    for i, (arrival, (name, further)) in enumerate(
        zip(arrivals, conversations(len(arrivals), follow, rng), strict=True)
    ):
        now = Arrival(arrival.at / rate, arrival.prompt, arrival.answer)
        fleet.pass_time(now.at)
        busy.append(sum(min(load, PLACES) for load in fleet.loads.values()) / (PLACES * replicas))
        chosen = ranked(f"request {i}" if rule == "load" else name, fleet.loads, places=places, slack=slack)[0]
        first, _ = fleet.run(chosen, name, now)
        firsts.append(first)
        if further:
            followed += 1
            stayed += chosen == homes[name]
        else:
            homes[name] = chosen
    firsts.sort()
    return {
        "load": sum(busy) / len(busy),
        "stayed": stayed / max(1, followed),
        "ttft_mean_s": sum(firsts) / len(firsts),
        "ttft_p95_s": firsts[int(0.95 * len(firsts))],
    }


def rate_for(arrivals: Sequence[Arrival], load: float, replicas: int, follow: float) -> float:
    """The rate at which the simulated replicas are busy to ``load`` under the shortest-queue rule, by bisection."""
    low, high = 1e-3, 1e5
    for _ in range(25):
        middle = (low * high) ** 0.5
        below = simulate(arrivals, "load", middle, replicas=replicas, follow=follow)["load"] < load
        low, high = (middle, high) if below else (low, middle)
    return low


def main() -> None:
    """Print a table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrivals", default=str(TRACE), metavar="FILE", help="a trace, or poisson")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--requests", type=int, default=2000, help="at most")
    parser.add_argument("--follow", type=float, default=0.7, help="share of requests that follow on another")
    parser.add_argument("--name", default="affinity-simulation", help="the result's (default: affinity-simulation)")
    given = parser.parse_args()
    poisson = given.arrivals == "poisson"
    arrivals = drawn(given.requests, random.Random(1)) if poisson else recorded(Path(given.arrivals))
    arrivals = arrivals[: given.requests]
    found: list[dict[str, Any]] = []
    for load in (0.25, 0.5, 0.75, 0.9):
        rate = rate_for(arrivals, load, given.replicas, given.follow)
        for rule in RULES:
            figures = simulate(arrivals, rule, rate, replicas=given.replicas, follow=given.follow)
            found.append({"asked": load, "rule": rule, **figures})
    print(f"SIMULATION: {given.replicas} replicas, {len(arrivals)} requests")
    print("| load | rule | follow-up turns at home | mean TTFT | p95 TTFT |\n|---|---|---|---|---|")
    for row in found:
        line = f"| {row['load']:.0%} | {row['rule']} | {row['stayed']:.1%} "
        print(f"{line}| {1e3 * row['ttft_mean_s']:.0f} ms | {1e3 * row['ttft_p95_s']:.0f} ms |")
    told = {"arrivals": Path(given.arrivals).name, "requests": len(arrivals), "replicas": given.replicas}
    print(keep(given.name, {"simulation": True, "options": {**told, "follow": given.follow}, "rows": found}))


if __name__ == "__main__":
    main()
