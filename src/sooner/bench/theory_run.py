"""Measures what the laws speak of: acceptance on plainly decoded texts, and drafts of every length in turns.

Knows an engine, drafters and a clock. Does not know what the figures are held against.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sooner.bench.configuration import Equipment
from sooner.bench.theory_counts import BIGRAM, UNIGRAM, CountDrafter, Counts
from sooner.bench.theory_shadow import Chained, Shadow, Together, Trail
from sooner.bench.workload import Item
from sooner.control.fixed import FixedController
from sooner.draft import parse_spec
from sooner.draft.cascade import CascadeDrafter
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.loading import make_drafter
from sooner.protocols import Drafter
from sooner.types import Sampling, Step

__all__ = ["PLAIN_LENGTH", "Lab", "Pass", "Timed"]

PLAIN_LENGTH = 0
"""The draft length that is plain decoding."""

_WARM_UP = "Count from one to twenty, then explain the plan of a bench."


@dataclass(frozen=True, slots=True)
class Pass:
    """One decoding pass of one text: seconds in all and for drafting; guesses checked and kept; tokens emitted."""

    seconds: float
    draft_seconds: float
    drafted: int
    kept: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Timed:
    """A text decoded with drafts of ``length`` tokens by ``drafter``: its passes after the first token."""

    drafter: str
    length: int
    item: str
    passes: tuple[Pass, ...]
    ids: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Of all its passes."""
        return sum(one.seconds for one in self.passes)


class Lab:
    """``engine`` decodes; it keeps no drafter of its own afterwards. ``training``: prompts whose texts the counting
    models are made from; none of them is measured.

    Everything is drafted as a chain. Raises `DraftError` for a drafter that the model cannot have.
    """

    def __init__(
        self,
        engine: Engine,
        sampling: Sampling,
        training: Sequence[Item],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine = engine
        self.sampling = sampling if sampling.seed is not None else replace(sampling, seed=0)
        self._training = training
        self._clock = clock
        self._counts: Counts | None = None

    def drafter(self, name: str, length: int) -> Drafter:
        """A fresh drafter from its short form (or `UNIGRAM`, `BIGRAM`), for chains of at most ``length``."""
        if name in (UNIGRAM, BIGRAM):
            return CountDrafter(name, self.counts)
        options = {"max": length, **parse_spec(name)}
        if options["kind"] in ("model", "layerskip"):
            options = {"thrifty": False, "width": 1, **options}
        engine = self.engine
        model = engine.fingerprint.get("model", "")
        merged = make_drafter([options], engine.target, engine.codec, model, opening=engine.open_model)
        assert isinstance(merged, CascadeDrafter)
        return Chained(merged.members[0])

    @property
    def counts(self) -> Counts:
        """Of the training prompts and of what the target writes after them at temperature 1, made once."""
        if self._counts is None:
            if not self._training:
                raise DraftError("counting models need texts to count: give at least two prompts")
            sampling = replace(self.sampling, temperature=1.0)
            texts = []
            for item in self._training:
                request = self.engine.request(item.prompt, sampling)
                self._install(None, PLAIN_LENGTH)
                written = self._decode(item, sampling, "training")
                texts.append([*request.prompt, *(token for _, step in written for token in step.tokens)])
            self._counts = Counts(texts, self.engine.target.vocab_size)
        return self._counts

    def watch(
        self, names: Sequence[str], items: Sequence[Item], temperature: float, length: int
    ) -> dict[str, list[Trail]]:
        """Every item decoded plainly once, with what each of ``names`` would have drafted at each position."""
        shadows = {name: Shadow(self.drafter(name, length)) for name in names}
        self._install(Together(list(shadows.values())), length)
        sampling = replace(self.sampling, temperature=temperature)
        for item in items:
            for _ in self._decode(item, sampling, f"watch {temperature}"):
                pass
        return {name: shadow.trails for name, shadow in shadows.items()}

    def sweep(
        self, names: Sequence[str], lengths: Sequence[int], items: Sequence[Item], temperature: float
    ) -> Iterator[Timed]:
        """Every item plainly and under each drafter with each length, in turns. Raises `DraftError` if a text changes
        where the target is row-invariant."""
        sampling = replace(self.sampling, temperature=temperature)
        kits: dict[tuple[str, int], Equipment] = {("plain", PLAIN_LENGTH): Equipment(None, FixedController(0))}
        for name in names:
            drafter = self.drafter(name, max(lengths))  # one for all: what it learns is kept apart by salt
            kits |= {(name, length): Equipment(drafter, FixedController(length)) for length in lengths}
        for kit in kits.values():  # as long as what is timed, and not yet on what is timed
            kit.install(self.engine)
            for _ in self._decode(Item("", "", _WARM_UP), replace(sampling, max_tokens=24), "warm-up"):
                pass
        for item in items:
            plain: tuple[int, ...] | None = None
            for (name, length), kit in kits.items():
                kit.install(self.engine)
                timed = _timed(name, length, item.id, list(self._decode(item, sampling, f"{name} {length}")))
                if plain is not None and plain != timed.ids and self.engine.target.row_invariant:
                    raise DraftError(f"{name} with {length} tokens changed text {item.id}: see sooner doctor")
                plain = plain or timed.ids
                yield timed

    def _install(self, drafter: Drafter | None, length: int) -> None:
        Equipment(drafter, FixedController(length)).install(self.engine)

    def _decode(self, item: Item, sampling: Sampling, salt: str) -> Iterator[tuple[float, Step]]:
        """Seconds and step of each pass of one text. Raises what the target or the drafter raised."""
        handle = self.engine.submit(self.engine.request(item.prompt, sampling, salt=f"theory {salt}"))
        try:
            while not handle.finished:
                begin = self._clock()
                steps = self.engine.step()
                spent = self._clock() - begin
                for step in steps:
                    yield spent, step
        finally:
            self.engine.abort(handle)
        if handle.error is not None:
            raise handle.error
        if self.engine.warning is not None:
            raise DraftError(f"{salt}: {self.engine.warning}; leave it out")


def _timed(name: str, length: int, item: str, written: Sequence[tuple[float, Step]]) -> Timed:
    passes = tuple(
        Pass(spent, step.draft_ms / 1e3, len(step.draft), step.accepted, len(step.tokens))
        for spent, step in written
        if step.index
    )
    return Timed(name, length, item, passes, tuple(token for _, step in written for token in step.tokens))
