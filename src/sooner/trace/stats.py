"""What a trace comes to: acceptance by position and by drafter, lengths, where the time went, speed against plain.

Knows step records, one at a time. Does not know files or tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sooner.trace.plain import PlainStep
from sooner.trace.reader import Trace
from sooner.types import ROOT, TARGET

__all__ = ["PHASES", "Drafted", "Position", "Speed", "Stats", "collect"]

PHASES = ("draft_ms", "score_ms", "verify_ms", "overhead_ms")
"""What a step's time is divided into."""


@dataclass(slots=True)
class Position:
    """The d-th drafted token of a step: drafts that reached so far, and how many of them were kept so far."""

    drafts: int = 0
    reached: int = 0
    kept: int = 0

    @property
    def rate(self) -> float | None:
        """The share of drafts this long that were kept up to here."""
        return self.kept / self.drafts if self.drafts else None

    @property
    def given_before(self) -> float | None:
        """The share of those kept up to the position before."""
        return self.kept / self.reached if self.reached else None


@dataclass(slots=True)
class Drafted:
    """One drafter's nodes, those that were emitted, and its claims where they were tested: below what was kept."""

    nodes: int = 0
    accepted: int = 0
    tested: int = 0
    claimed: float = 0.0
    right: int = 0


@dataclass(frozen=True, slots=True)
class Speed:
    """After the first token, of all answers together. ``plain_ms``, a step without a draft, and ``ratio`` are None
    where they cannot be told."""

    tokens: int
    ms: float
    plain_ms: float | None
    plain_from: str | None

    @property
    def ratio(self) -> float | None:
        """How many times as fast as plain decoding is estimated to be."""
        return self.plain_ms * self.tokens / self.ms if self.plain_ms is not None and self.ms > 0 else None


@dataclass(slots=True)
class Stats:
    """Counted over the decoding steps of a trace, those after each answer's first. ``prompt_ms``: the time to the first
    token. ``drafted[n]``, ``kept[n]``: steps that drafted, and kept, n tokens."""

    header: Mapping[str, Any]
    footer: Mapping[str, Any] | None = None
    steps: int = 0
    tokens: int = 0
    choices: int = 0
    prompt_ms: float = 0.0
    end_ms: float = 0.0
    drafted: Counter[int] = field(default_factory=Counter)
    kept: Counter[int] = field(default_factory=Counter)
    positions: list[Position] = field(default_factory=list)
    drafters: dict[str, Drafted] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    plain: PlainStep = field(default_factory=PlainStep)
    _decoded: int = 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one step's record."""
        emitted = len(record["tokens"])
        self.tokens += emitted
        self.end_ms = max(self.end_ms, record.get("at_ms", 0.0))
        if record["index"] == 0:
            self.choices += 1
            self.prompt_ms = max(self.prompt_ms, record.get("at_ms", 0.0))
            return
        if not emitted:  # the end from outside
            return
        self.steps += 1
        self._decoded += emitted
        for phase in PHASES:
            self.times[phase] += record.get(phase, 0.0)
        draft = record["draft"]
        besides = record.get("verify_ms", 0.0) + record.get("overhead_ms", 0.0)
        passed = record.get("rows", 0), record.get("pass_rows", 0)
        self.plain.add(*passed, draft["parents"], record.get("score_ms", 0.0), besides)
        kept = sum(source != TARGET for source in record["sources"])
        self.drafted[len(draft["tokens"])] += 1
        self.kept[kept] += 1
        if draft["tokens"]:
            self._drafts(draft, record["path"], kept)

    def _drafts(self, draft: Mapping[str, Any], path: list[int], kept: int) -> None:
        on_path = {ROOT, *path}
        depths: list[int] = []
        for node, parent in enumerate(draft["parents"]):
            depths.append(1 if parent == ROOT else depths[parent] + 1)
            drafter = self.drafters.setdefault(draft["sources"][node], Drafted())
            drafter.nodes += 1
            drafter.accepted += node in on_path
            if parent in on_path:
                drafter.tested += 1
                drafter.claimed += draft["confidence"][node]
                drafter.right += node in on_path
        deepest = max(depths)
        while len(self.positions) < deepest:
            self.positions.append(Position())
        for depth, position in enumerate(self.positions[:deepest], start=1):
            position.drafts += 1
            position.reached += kept >= depth - 1
            position.kept += kept >= depth

    @property
    def accepted(self) -> int:
        """Drafted tokens that were emitted."""
        return sum(kept * steps for kept, steps in self.kept.items())

    @property
    def nodes(self) -> int:
        """Drafted tokens."""
        return sum(count * steps for count, steps in self.drafted.items())

    @property
    def acceptance_length(self) -> float:
        """Tokens per decoding pass, the target's own included."""
        return self._decoded / self.steps if self.steps else 1.0

    @property
    def speed(self) -> Speed:
        """Speed after the first token, and what plain decoding would have been: as the footer says, else estimated."""
        spent = max(0.0, self.end_ms - self.prompt_ms) if self.end_ms else sum(self.times.values())
        told = self.footer or {}
        plain = told.get("plain_ms"), told.get("plain_from")
        if not isinstance(plain[0], int | float):
            context = (self.header.get("prompt_tokens") or 0) + self.tokens / 2
            plain = self.plain.estimate(self.header.get("cost"), context) or (None, None)
        return Speed(self._decoded, spent, *plain)

    def to_dict(self) -> dict[str, Any]:
        """The object of ``sooner trace stats --json``."""
        speed = self.speed
        return {
            "model": self.header.get("model"),
            "drafter": self.header.get("drafter"),
            "lossless": self.header.get("lossless"),
            "complete": self.footer is not None,
            "error": None if self.footer is None else self.footer.get("error"),
            "choices": self.choices,
            "prompt_tokens": self.header.get("prompt_tokens"),
            "tokens": self.tokens,
            "steps": self.steps,
            "drafts": self.steps - self.drafted[0],
            "drafted": self.nodes,
            "accepted": self.accepted,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.accepted / self.nodes if self.nodes else 0.0,
            "positions": [
                {"position": i, "drafts": p.drafts, "kept": p.kept, "rate": p.rate, "given_before": p.given_before}
                for i, p in enumerate(self.positions, start=1)
            ],
            "drafters": {
                name: {
                    "drafted": d.nodes,
                    "accepted": d.accepted,
                    "claimed": d.claimed / d.tested if d.tested else None,
                    "agreed": d.right / d.tested if d.tested else None,
                }
                for name, d in self.drafters.items()
            },
            "drafted_histogram": _histogram(self.drafted),
            "kept_histogram": _histogram(self.kept),
            "time_ms": {"prompt": self.prompt_ms, **{name.removesuffix("_ms"): ms for name, ms in self.times.items()}},
            "decoding_ms": speed.ms,
            "tokens_per_second": 1e3 * speed.tokens / speed.ms if speed.ms else None,
            "plain_ms": speed.plain_ms,
            "plain_from": speed.plain_from,
            "speed_up": speed.ratio,
        }


def _histogram(counts: Counter[int]) -> list[int]:
    return [counts[n] for n in range(max((n for n, steps in counts.items() if steps), default=0) + 1)]


def collect(trace: Trace) -> Stats:
    """The figures of a trace that has just been opened, in constant memory."""
    stats = Stats(trace.header)
    for record in trace:
        stats.add(record)
    stats.footer = trace.footer
    return stats
