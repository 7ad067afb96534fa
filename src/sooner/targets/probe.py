"""Whether a target's rows are the same bits however they are scored, and what its passes cost: through its contract.

Knows how to score the same rows in every lawful way. Does not know any target; a target's own probe adds the unlawful
ways, which show that the check can see a difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from sooner import tree
from sooner.protocols import Session, Target
from sooner.types import ROOT, Draft, Logits, Work

__all__ = ["Comparison", "PassCost", "Probe", "RowVerdict", "check_rows", "pass_costs", "quick_check"]


@dataclass(slots=True)
class Comparison:
    """How rows scored one way compare with the same rows from one long pass. ``largest``: of any logit's difference."""

    name: str
    rows: int = 0
    differing: int = 0
    largest: float = 0.0

    def add(self, rows: Logits, reference: Logits) -> None:
        """Compare ``[n, V]`` with ``[n, V]``, bit for bit."""
        unequal = rows.view(np.uint32) != reference.view(np.uint32)
        self.rows += len(rows)
        self.differing += int(unequal.any(axis=1).sum())
        if unequal.any():
            self.largest = max(self.largest, float(np.abs(rows - reference).max()))

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.name}: not compared, there is no room"
        if not self.differing:
            return f"{self.name}: {self.rows} rows, no difference on this machine"
        return f"{self.name}: {self.differing} of {self.rows} rows differ, by up to {self.largest:.3g}"


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """``lawful`` are the ways the target scores rows; ``controls`` are ways it never uses, expected to differ."""

    lawful: tuple[Comparison, ...]
    controls: tuple[Comparison, ...]

    @property
    def invariant(self) -> bool:
        """Whether every row was the same bits in every lawful way."""
        return all(comparison.differing == 0 for comparison in self.lawful)

    @property
    def sharp(self) -> bool:
        """Whether some control differed: that the check can see a difference at all on this machine."""
        return any(comparison.differing for comparison in self.controls)

    def __str__(self) -> str:
        verdict = "rows are invariant" if self.invariant else "rows are NOT invariant: equal up to near-ties only"
        lines = [verdict, *(f"  {item}" for item in self.lawful), "negative controls (ways never used)"]
        return "\n".join([*lines, *(f"  {item}" for item in self.controls)])


@dataclass(frozen=True, slots=True)
class PassCost:
    """Median milliseconds of a pass over ``sequences`` sequences of ``rows`` rows each, after ``context`` tokens."""

    sequences: int
    rows: int
    context: int
    ms: float


def quick_check(target: Target) -> bool:
    """Whether some rows are the same bits alone, in fives and eights, on a sibling, and in a batch; some 14 passes."""
    probe = Probe(target, min(72, target.context - 16), seed=1)
    ways: tuple[Callable[[], Comparison], ...] = (
        partial(probe.chunks, 1, 4),
        partial(probe.chunks, 8, 3),
        partial(probe.chunks, 5, 2),
        partial(probe.tree, 1, 6),
        partial(probe.batch, 3),
    )
    return all(way().differing == 0 for way in ways)


def check_rows(target: Target, length: int = 600, seed: int = 0) -> RowVerdict:
    """Score ``length`` random tokens in one pass, then the same rows in other ways: some seconds for a small model."""
    probe = Probe(target, min(length, target.context - 16), seed)
    return RowVerdict(probe.lawful(), ())


def pass_costs(
    target: Target,
    rows: Sequence[int] = (1, 2, 4, 8, 16),
    sequences: Sequence[int] = (1, 2, 4),
    contexts: Sequence[int] = (256,),
    repeats: int = 4,
    *,
    before: Callable[[], None] = lambda: None,
) -> list[PassCost]:
    """Time passes in interleaved order (so that a slow moment meets all of them). One row is padded to two.

    Each width is met once before it is timed, twice. ``before`` is called before each pass.
    """
    times: dict[tuple[int, int, int], list[float]] = {}
    for context in contexts:
        with _timed_passes(target, context, max(sequences), before) as timed:
            for _ in range(repeats):
                for count in sequences:
                    for n in rows:
                        _, *steady = [timed(count, n) for _ in range(3)]
                        times.setdefault((count, n, context), []).extend(steady)
    return [PassCost(*key, float(np.median(values))) for key, values in times.items()]


class Probe:
    """One random text, its rows from a single pass, and the same rows in other ways."""

    def __init__(self, target: Target, length: int, seed: int) -> None:
        self.target = target
        self.length = length
        self.random = np.random.default_rng(seed)
        self.tokens = random_tokens(target, length, seed)
        with opened(target) as (session,):
            work = Work(session, self.tokens[:1], chain(self.tokens[1:]))
            self.reference: Logits = target.score([work])[0].logits.copy()

    def lawful(self) -> tuple[Comparison, ...]:
        """Every way that a target scores rows."""
        sizes = [size for size in (2, 3, 4, 8, 16, 33, 64, 128, 256) if size < self.length]
        return (*(self.chunks(size) for size in sizes), self.chunks(1), self.batch(5), self.tree(12, 12))

    def chunks(self, size: int, passes: int = 12) -> Comparison:
        """The last tokens in ``passes`` passes over ``size``, after a prefill; one alone is padded by the target."""
        result = Comparison(f"passes over {size}" if size > 1 else "passes over 1, padded by the target")
        begin = max(self.length - size * passes, 0)
        with opened(self.target) as (session,):
            if begin:
                self.target.score([Work(session, self.tokens[:begin], logits=False)])
            for start in range(begin, self.length, size):
                part = self.tokens[start : start + size]
                rows = self.target.score([Work(session, part[:1], chain(part[1:]))])[0].logits
                result.add(rows, self.reference[start : start + len(part)])
                session.settle(range(len(part) - 1))
        return result

    def batch(self, count: int) -> Comparison:
        """``count`` sequences, or as many as fit, at different places of the text, with drafts of different lengths."""
        result = Comparison(f"{count} sequences in a pass")
        places = np.linspace(1, self.length - 13, count).astype(int).tolist()
        with opened(self.target, count) as sessions:
            works = [
                Work(session, self.tokens[place : place + 1], chain(self.tokens[place + 1 : place + 1 + 3 * i]))
                for i, (session, place) in enumerate(zip(sessions, places, strict=True))
            ]
            if not self.target.fits(works):
                return self.batch(count - 1) if count > 1 else result
            for session, place in zip(sessions, places, strict=True):
                self.target.score([Work(session, self.tokens[:place], logits=False)])
            for rows, place, work in zip(self.target.score(works), places, works, strict=True):
                result.add(rows.logits, self.reference[place : place + 1 + len(work.draft)])
        return result

    def tree(self, trees: int, depth: int) -> Comparison:
        """Drafts whose last branch is the text, so that its rows come from a sibling branch."""
        result = Comparison("sibling branches of trees")
        with opened(self.target) as (session,):
            for place in self.places(trees, depth):
                session.sync(self.tokens[:place])
                root = self.tokens[len(session.tokens) : place + 1]
                draft = self.forked(place, depth)
                rows = self.target.score([Work(session, root, draft)])[0].logits
                mine = [0, *(node + 1 for node in draft.path(len(draft) - 1))]
                result.add(rows[mine], self.reference[place : place + len(mine)])
        return result

    def places(self, count: int, room: int, limit: int | None = None) -> list[int]:
        """``count`` random positions with ``room`` tokens behind them, below ``limit``."""
        end = min(self.length - room, limit or self.length)
        return sorted(self.random.integers(2, end, count).tolist())

    def forked(self, place: int, depth: int) -> Draft:
        """Three strangers as the first branch, the text as the second."""
        text = self.tokens[place + 1 : place + 1 + depth]
        strangers = random_tokens(self.target, 3, place)
        parents = (ROOT, 0, 1, ROOT, *range(3, 2 + len(text)))
        return Draft((*strangers, *text), parents, (1.0,) * len(parents), ("probe",) * len(parents))


@contextmanager
def _timed_passes(
    target: Target, context: int, count: int, before: Callable[[], None]
) -> Iterator[Callable[[int, int], float]]:
    """A function that times a pass (sequences, rows) in ms, after ``context`` tokens each."""
    tokens = random_tokens(target, context + 1, 0)
    with opened(target, count) as sessions:
        for session in sessions:
            target.score([Work(session, tokens[:-1], logits=False)])

        def timed(sequences: int, rows: int) -> float:
            draft = chain(random_tokens(target, rows - 1, 1))
            works = [Work(session, tokens[-1:], draft) for session in sessions[:sequences]]
            before()
            start = time.perf_counter()
            target.score(works)
            elapsed = time.perf_counter() - start
            for session in sessions[:sequences]:
                session.sync(tokens[:-1])
            return elapsed * 1e3

        yield timed


@contextmanager
def opened(target: Target, count: int = 1) -> Iterator[list[Session]]:
    """Fresh sessions that find nothing in the prefix cache."""
    sessions = [target.open(salt=f"probe {time.monotonic_ns()} {i}") for i in range(count)]
    try:
        yield sessions
    finally:
        for session in sessions:
            session.close()


def random_tokens(target: Target, count: int, seed: int) -> tuple[int, ...]:
    """``count`` ids of the target's vocabulary."""
    return tuple(np.random.default_rng([seed, 7]).integers(0, target.vocab_size, count).tolist())


def chain(tokens: Sequence[int]) -> Draft:
    """A draft of one child each."""
    return tree.chain(tokens, 1.0, "probe")
