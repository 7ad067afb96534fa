"""Measures a loaded target on this machine: whether rows are invariant, with negative controls, and what passes cost.

Knows how to score the same row in many ways, lawful and unlawful. Does not know requests, drafters or text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from sooner import tree
from sooner.targets.openvino.graph import block_count
from sooner.targets.openvino.layout import Pass, paths
from sooner.targets.openvino.session import OpenVINOSession
from sooner.targets.openvino.target import OpenVINOTarget
from sooner.types import ROOT, Draft, Logits, Work

__all__ = ["Comparison", "PassCost", "RowVerdict", "check_rows", "pass_costs", "quick_check"]


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


def quick_check(target: OpenVINOTarget) -> bool:
    """Whether some rows are the same bits alone, in a long pass, in eights, and on a sibling; ten short passes."""
    probe = _Probe(target, min(40, target.context - 16), seed=1)
    return all(c.differing == 0 for c in (probe.chunks(1, 4), probe.chunks(8, 3), probe.tree(1, 6)))


def check_rows(target: OpenVINOTarget, length: int = 600, seed: int = 0) -> RowVerdict:
    """Score ``length`` random tokens in one pass, then the same rows in other ways: some seconds for a small model."""
    probe = _Probe(target, min(length, target.context - 16, target.plan.pool_tokens // 8), seed)
    sizes = [size for size in (2, 3, 4, 8, 16, 33, 64, 128, 256) if size < probe.length]
    lawful = [probe.chunks(size) for size in sizes]
    lawful += [probe.chunks(1), probe.batch(5), probe.tree(12, 12)]
    controls = (probe.lone_rows(8), probe.lone_tail(), probe.masks(12))
    return RowVerdict(tuple(lawful), controls)


def pass_costs(
    target: OpenVINOTarget,
    rows: Sequence[int] = (1, 2, 4, 8, 16),
    sequences: Sequence[int] = (1, 2, 4),
    contexts: Sequence[int] = (256,),
    repeats: int = 4,
) -> list[PassCost]:
    """Time passes in interleaved order (so that a slow moment meets all of them). One row is padded to two.

    Each width is met once before it is timed, twice: what changing it costs is ``target.width.change_ms``.
    """
    times: dict[tuple[int, int, int], list[float]] = {}
    for context in contexts:
        with _timed_passes(target, context, max(sequences)) as timed:
            for _ in range(repeats):
                for count in sequences:
                    for n in rows:
                        _, *steady = [timed(count, n) for _ in range(3)]
                        times.setdefault((count, n, context), []).extend(steady)
    return [PassCost(*key, float(np.median(values))) for key, values in times.items()]


_NEAR = 128
"""Controls that prefill anew for every row stay below this position."""


class _Probe:
    """One random text, its rows from a single pass, and the same rows in other ways."""

    def __init__(self, target: OpenVINOTarget, length: int, seed: int) -> None:
        self.target = target
        self.length = length
        self.random = np.random.default_rng(seed)
        self.tokens = _random_tokens(target, length, seed)
        with _opened(target) as (session,):
            work = Work(session, self.tokens[:1], _chain(self.tokens[1:]))
            self.reference: Logits = target.score([work])[0].logits.copy()

    def chunks(self, size: int, passes: int = 12) -> Comparison:
        """The last tokens in ``passes`` passes over ``size``, after a prefill; one alone is padded by the target."""
        result = Comparison(f"passes over {size}" if size > 1 else "passes over 1, padded to 2")
        begin = max(self.length - size * passes, 0)
        with _opened(self.target) as (session,):
            if begin:
                self.target.score([Work(session, self.tokens[:begin], logits=False)])
            for start in range(begin, self.length, size):
                part = self.tokens[start : start + size]
                rows = self.target.score([Work(session, part[:1], _chain(part[1:]))])[0].logits
                result.add(rows, self.reference[start : start + len(part)])
                session.settle(range(len(part) - 1))
        return result

    def batch(self, count: int) -> Comparison:
        """``count`` sequences at different places of the text, with drafts of different lengths, in one pass."""
        result = Comparison(f"{count} sequences in a pass")
        places = np.linspace(1, self.length - 13, count).astype(int).tolist()
        with _opened(self.target, count) as sessions:
            for session, place in zip(sessions, places, strict=True):
                self.target.score([Work(session, self.tokens[:place], logits=False)])
            works = [
                Work(session, self.tokens[place : place + 1], _chain(self.tokens[place + 1 : place + 1 + 3 * i]))
                for i, (session, place) in enumerate(zip(sessions, places, strict=True))
            ]
            for rows, place, work in zip(self.target.score(works), places, works, strict=True):
                result.add(rows.logits, self.reference[place : place + 1 + len(work.draft)])
        return result

    def tree(self, trees: int, depth: int) -> Comparison:
        """Drafts whose last branch is the text, so that its rows come from a sibling chain."""
        result = Comparison("sibling branches of trees")
        with _opened(self.target) as (session,):
            for place in self._places(trees, depth):
                session.sync(self.tokens[:place])
                root = self.tokens[len(session.tokens) : place + 1]
                draft = self._forked(place, depth)
                rows = self.target.score([Work(session, root, draft)])[0].logits
                mine = [0, *(node + 1 for node in paths(draft)[-1])]
                result.add(rows[mine], self.reference[place : place + len(mine)])
        return result

    def lone_rows(self, count: int) -> Comparison:
        """Unlawful: one row of one sequence beside four of another."""
        result = Comparison("1 row beside 4 rows")
        for place in self._places(count, 1, _NEAR):
            with self._prefilled(place) as table, self._prefilled(2) as other:
                flat = Pass()
                flat.rows.append(flat.feed(place, self.tokens[place : place + 1], table[: block_count(place + 1)]))
                flat.feed(0, self.tokens[:4], other[:1])
                result.add(self.target.runner.run(flat)[0], self.reference[place : place + 1])
        return result

    def lone_tail(self) -> Comparison:
        """Unlawful: a prefill of all tokens but one, then the last one alone."""
        result = Comparison(f"prefill of {self.length - 1} + 1")
        with self._prefilled(self.length - 1) as table:
            flat = Pass()
            flat.rows.append(flat.feed(self.length - 1, self.tokens[-1:], table[: block_count(self.length)]))
            result.add(self.target.runner.run(flat)[0], self.reference[-1:])
        return result

    def masks(self, count: int) -> Comparison:
        """Unlawful: the same trees in one sequence each, told apart by an attention mask."""
        result = Comparison("side branches of mask trees")
        depth = 6
        for place in self._places(count, depth, _NEAR):
            draft = self._forked(place, depth)
            with self._prefilled(place) as table:
                flat, mine = _masked(place, self.tokens[place], draft, table)
                flat.rows += mine
                result.add(self.target.runner.run(flat)[0], self.reference[place : place + len(mine)])
        return result

    @contextmanager
    def _prefilled(self, length: int) -> Iterator[list[int]]:
        """Blocks of our own that hold the first ``length`` tokens (at least 2), with room for a short draft."""
        table = [self.target.pool.take() for _ in range(block_count(length) + 1)]
        flat = Pass()
        flat.feed(0, self.tokens[:length], table[: block_count(length)])
        try:
            self.target.runner.run(flat)
            yield table
        finally:
            self.target.pool.drop(table)

    def _places(self, count: int, room: int, limit: int | None = None) -> list[int]:
        end = min(self.length - room, limit or self.length)
        return sorted(self.random.integers(2, end, count).tolist())

    def _forked(self, place: int, depth: int) -> Draft:
        """Three strangers as the first branch, the text as the second."""
        text = self.tokens[place + 1 : place + 1 + depth]
        strangers = _random_tokens(self.target, 3, place)
        parents = (ROOT, 0, 1, ROOT, *range(3, 2 + len(text)))
        return Draft((*strangers, *text), parents, (1.0,) * len(parents), ("probe",) * len(parents))


def _masked(place: int, root: int, draft: Draft, table: Sequence[int]) -> tuple[Pass, list[int]]:
    """A tree as one sequence with a mask; also the rows of its last branch, root first."""
    flat = Pass()
    n = 1 + len(draft)
    flat.feed(place, (root, *draft.tokens), table[: block_count(place + n)])
    flat.positions[1:] = [place + level for level in tree.depths(draft)]
    mask = np.eye(n, dtype=np.bool_)
    mask[:, 0] = True
    mask[1:, 1:] = tree.ancestor_mask(draft)
    flat.bias = mask.astype(int).ravel().tolist()
    flat.bias_begins = [0, n * n]
    return flat, [0, *(node + 1 for node in paths(draft)[-1])]


@contextmanager
def _timed_passes(target: OpenVINOTarget, context: int, count: int) -> Iterator[Callable[[int, int], float]]:
    """A function that times a pass (sequences, rows) in ms, after ``context`` tokens each, at its exact width."""
    tokens = _random_tokens(target, context + 1, 0)
    with _opened(target, count) as sessions:
        for session in sessions:
            target.score([Work(session, tokens[:-1], logits=False)])

        def timed(sequences: int, rows: int) -> float:
            chain = _chain(_random_tokens(target, rows - 1, 1))
            works = [Work(session, tokens[-1:], chain) for session in sessions[:sequences]]
            target.width.forget()
            start = time.perf_counter()
            target.score(works)
            elapsed = time.perf_counter() - start
            for session in sessions[:sequences]:
                session.sync(tokens[:-1])
            return elapsed * 1e3

        yield timed


@contextmanager
def _opened(target: OpenVINOTarget, count: int = 1) -> Iterator[list[OpenVINOSession]]:
    """Fresh sessions that find nothing in the prefix cache, and an empty prefix cache afterwards."""
    sessions = [target.open(salt=f"probe {time.monotonic_ns()} {i}") for i in range(count)]
    try:
        yield sessions
    finally:
        for session in sessions:
            session.close()
        target.pool.purge()


def _random_tokens(target: OpenVINOTarget, count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng([seed, 7]).integers(0, target.vocab_size, count).tolist())


def _chain(tokens: Sequence[int]) -> Draft:
    return tree.chain(tokens, 1.0, "probe")
