"""Runs prompts under several configurations in turns, in one process, and times what each pass brought.

Knows an engine and a clock. Does not know where prompts come from or what is concluded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sooner.batch import Handle
from sooner.bench.configuration import Configuration, Equipment
from sooner.bench.loops import loop_start
from sooner.bench.workload import Item
from sooner.engine import Engine
from sooner.errors import DraftError, InvalidRequest
from sooner.types import Request, Sampling, Step

__all__ = ["Group", "Runner", "Sample", "group_items"]

_WARM_UP = "Count from one to twenty, then explain the plan of a bench."
"""No workload's prompt, so that no drafter learns a measured text before its turn."""

_WARM_UP_TOKENS = 32

_BEFORE = -1
"""The round of the warm-up, whose salt no counted round has."""

Group = tuple[Item, ...]
Pass = tuple[float, list[Step]]


@dataclass(frozen=True, slots=True)
class Sample:
    """A group of texts written side by side under one configuration, once.

    ``tokens[i]``: the ids of item i's text. ``seconds`` are those of decoding ``counted`` tokens: after the first
    token for a single text, from submission to the last token for a batch. ``fresh_seconds`` and ``fresh_tokens``:
    the same up to where each text falls into a loop; a pass's time is divided evenly among its texts.
    ``steps``: decoding passes, per text. ``draft_ms`` of ``pass_ms`` went into drafting.
    """

    configuration: str
    category: str
    items: tuple[str, ...]
    round: int
    tokens: tuple[tuple[int, ...], ...]
    seconds: float
    counted: int
    fresh_seconds: float
    fresh_tokens: int
    steps: int
    step_tokens: int
    drafted: int
    accepted: int
    draft_ms: float
    pass_ms: float

    @property
    def key(self) -> tuple[str, tuple[str, ...], int]:
        """What was run, whatever the configuration."""
        return self.category, self.items, self.round


def group_items(categories: Mapping[str, Sequence[Item]], batch: int) -> list[Group]:
    """Items of one category in groups of ``batch``, the last of a category maybe smaller."""
    return [
        tuple(items[at : at + batch]) for items in categories.values() for at in range(0, len(items), batch) if items
    ]


class Runner:
    """``engine`` decodes; it keeps no drafter of its own afterwards. Each configuration gets a drafter and controller
    of its own, fresh at every `warm_up`, and a salt of its own in every round: prompts are as cold for one as for
    another, and drafters learn from one text to the next as they do for a user. Every run has ``sampling``'s seed.
    """

    def __init__(
        self,
        engine: Engine,
        configurations: Sequence[Configuration],
        sampling: Sampling,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine = engine
        self.configurations = tuple(configurations)
        self.sampling = sampling if sampling.seed is not None else replace(sampling, seed=0)
        self._clock = clock
        self._controller = engine.controller
        self._equipment: dict[str, Equipment] = {}

    def refusal(self, item: Item) -> str | None:
        """Why the engine cannot take an item, if it cannot."""
        model = self.engine.fingerprint.get("model", "")
        if item.model and item.model != model:
            return "it was recorded with another model, whose token ids mean other text"
        try:
            self.engine.abort(self.engine.submit(self._request(item, "")))
        except InvalidRequest as error:
            return str(error)
        return None

    def warm_up(self) -> None:
        """Forget what drafters and controllers have learned, then run each configuration once, uncounted."""
        self._equipment = {one.name: one.equip(self.engine, self._controller) for one in self.configurations}
        counted = self.sampling
        self.sampling = replace(counted, max_tokens=min(_WARM_UP_TOKENS, counted.max_tokens or _WARM_UP_TOKENS))
        try:
            for configuration in self.configurations:
                self.run(configuration, (Item("", "", _WARM_UP),), _BEFORE)
        finally:
            self.sampling = counted

    def interleaved(self, groups: Sequence[Group], rounds: int) -> Iterator[Sample]:
        """Every group under every configuration in turns (A B A B), ``rounds`` times; drafters start each anew."""
        for turn in range(rounds):
            self.warm_up()
            for group in groups:
                for configuration in self.configurations:
                    yield self.run(configuration, group, turn)

    def run(self, configuration: Configuration, group: Group, turn: int) -> Sample:
        """One group under one configuration. Raises what the target or a failing drafter raises."""
        self._equipment[configuration.name].install(self.engine)
        handles: list[Handle] = []
        try:
            for item in group:
                handles.append(self.engine.submit(self._request(item, f"bench {turn} {configuration.name}")))
            passes = list(self._drive(handles))
        finally:
            for handle in handles:
                self.engine.abort(handle)
        for handle in handles:
            if handle.error is not None:
                raise handle.error
        if self.engine.warning is not None:
            raise DraftError(f"configuration {configuration.name}: {self.engine.warning}; leave it out")
        return _sample(configuration.name, group, turn, handles, passes)

    def _drive(self, handles: Sequence[Handle]) -> Iterator[Pass]:
        while not all(handle.finished for handle in handles):
            begin = self._clock()
            steps = self.engine.step()
            yield self._clock() - begin, steps

    def _request(self, item: Item, salt: str) -> Request:
        return self.engine.request(item.prompt, self.sampling, salt=salt)


def _sample(name: str, group: Group, turn: int, handles: Sequence[Handle], passes: Sequence[Pass]) -> Sample:
    texts = [tuple(token for step in handle.steps for token in step.tokens) for handle in handles]
    decoding = [(spent, steps) for spent, steps in passes if any(step.index for step in steps)]
    timed = decoding if len(group) == 1 else passes
    steps = [step for _, several in decoding for step in several if step.index]
    fresh = [_fresh(handle, text, decoding) for handle, text in zip(handles, texts, strict=True)]
    return Sample(
        configuration=name,
        category=group[0].category,
        items=tuple(item.id for item in group),
        round=turn,
        tokens=tuple(texts),
        seconds=sum(spent for spent, _ in timed),
        counted=sum(len(step.tokens) for _, several in timed for step in several),
        fresh_seconds=sum(seconds for seconds, _ in fresh),
        fresh_tokens=sum(tokens for _, tokens in fresh),
        steps=len(steps),
        step_tokens=sum(len(step.tokens) for step in steps),
        drafted=sum(len(step.draft) for step in steps),
        accepted=sum(step.accepted for step in steps),
        draft_ms=sum(several[0].draft_ms for _, several in decoding),
        pass_ms=sum(_pass_ms(several[0]) for _, several in decoding),
    )


def _fresh(handle: Handle, text: tuple[int, ...], passes: Sequence[Pass]) -> tuple[float, int]:
    """Seconds and tokens of a text's decoding passes that begin before it falls into a loop."""
    end = loop_start(text)
    ids = {slot.sequence.id for slot in handle.slots}
    seconds, at = 0.0, len(handle.steps[0].tokens)
    tokens = max(0, end - at)
    for spent, steps in passes:
        for step in steps:
            if step.sequence in ids and step.index:
                if at < end or end == len(text):
                    seconds += spent / len(steps)
                at += len(step.tokens)
    return seconds, tokens


def _pass_ms(step: Step) -> float:
    return step.draft_ms + step.score_ms + step.verify_ms + step.overhead_ms
