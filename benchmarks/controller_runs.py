"""Running a part of the controller's benchmark: its texts, what is compared beyond drafters by name, and turns.

Knows the engine through `sooner.load` and `bench.Runner`. Does not know what the figures are judged by.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from common import SPEC_BENCH

import sooner
from sooner.bench.configuration import Configuration, Equipment
from sooner.bench.runner import Group, Runner, Sample
from sooner.bench.workload import Item, for_evaluation, per_category, read_workload
from sooner.engine import Engine
from sooner.loading import DEFAULT_DRAFT, make_drafter
from sooner.protocols import Context, Controller, Drafter
from sooner.targets.openvino import session
from sooner.targets.openvino.layout import Branch, branches
from sooner.types import EMPTY_DRAFT, Draft, Rows, Step

__all__ = [
    "CHAT",
    "CODE",
    "Deaf",
    "Truth",
    "Variant",
    "collect",
    "default_drafter",
    "load",
    "one_row",
    "texts",
    "turns",
]

CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Spec-Bench's categories from MT-Bench."""

CODE = "rewrite_code"
"""The category of rewriting a piece of code from the prompt; its texts are ours, beside this file."""

_WARM_UPS = tuple(Item("", "", f"Tell me {count} things about benches and plans.") for count in range(2, 10))

Truth = dict[tuple[int, ...], tuple[int, ...]]
"""The plain output of each prompt that has had its turn."""


@dataclass(frozen=True, slots=True)
class Variant(Configuration):
    """A configuration that no short form names. ``make``: its drafter; ``one_row``: a plain pass feeds one row of a
    sequence (`one_row`), so that texts may differ."""

    make: Callable[[Engine], Drafter] | None = None
    one_row: bool = False

    def equip(self, engine: Engine, controller: Controller) -> Equipment:
        """The controller that any configuration gets, with the drafter that ``make`` makes."""
        found = Configuration.equip(self, engine, controller)  # a slots dataclass has no bare super()
        return found if self.make is None else Equipment(self.make(engine), found.controller)

    @property
    def around(self) -> AbstractContextManager[None]:
        """What its runs happen in."""
        return one_row() if self.one_row else nullcontext()


class Deaf:
    """A drafter that does not hear the target's noise: it ranks by q where it would rank by E / q."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    @property
    def name(self) -> str:
        return self._drafter.name

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        return self._drafter.propose([replace(context, noise=None) for context in contexts])

    def observe(self, step: Step, rows: Rows) -> None:
        self._drafter.observe(step, rows)

    def forget(self, id: int) -> None:
        self._drafter.forget(id)


def load(*, warm: bool) -> Engine:
    """The default model with the default drafters under the default controller, whatever ``sooner tune`` found.

    ``warm``: the graphs that long use compiles on the way are compiled before anything is timed.
    """
    return sooner.load(draft=DEFAULT_DRAFT, warm=warm)


def default_drafter(engine: Engine) -> Drafter:
    """The default drafters, fresh."""
    drafter = make_drafter(DEFAULT_DRAFT, engine.target, engine.codec, engine.fingerprint.get("model", ""))
    assert drafter is not None
    return drafter


@contextmanager
def one_row() -> Iterator[None]:
    """Plain passes feed one row of each sequence instead of two: quicker, and a row's bits then depend on its batch."""
    guarded = branches

    def unguarded(held: Sequence[int], tokens: tuple[int, ...], draft: Draft = EMPTY_DRAFT) -> list[Branch]:
        if len(tokens) == 1 and not len(draft):
            return [Branch(len(held), tokens, ())]
        return guarded(held, tokens, draft)

    with mock.patch.object(session, "branches", unguarded):
        yield


def texts(most: int, only: Sequence[str] = (), *, code: bool = True) -> dict[str, list[Item]]:
    """Spec-Bench's evaluation prompts, at most ``most`` a category, and the code to rewrite; of categories ``only``."""
    items = for_evaluation(read_workload(str(SPEC_BENCH)))
    if code:
        items = [*items, *read_workload(str(Path(__file__).with_name(f"{CODE}.jsonl")))]
    found = per_category(items, most)
    if unknown := set(only) - {*found, "chat"}:
        raise SystemExit(f"no category {', '.join(sorted(unknown))}: there are {', '.join(found)}, and chat for {CHAT}")
    wanted = {*only, *(CHAT if "chat" in only else ())}
    return {name: group for name, group in found.items() if not only or name in wanted}


def turns(runner: Runner, groups: Sequence[Group], rounds: int, truth: Truth | None = None) -> Iterator[list[Sample]]:
    """Per group and round, one sample of each configuration, the first of which is plain decoding and sets ``truth``.

    Raises `AssertionError` if a text is not the plain one.
    """
    size = max(map(len, groups))
    for turn in range(rounds):
        runner.warm_up()
        for configuration in runner.configurations:  # as wide as what is timed, and not yet on what is timed
            _run(runner, configuration, _WARM_UPS[:size], turn)
        for group in groups:
            row: list[Sample] = []
            for configuration in runner.configurations:
                sample = _run(runner, configuration, group, turn)
                if not row and truth is not None:
                    for item, tokens in zip(group, sample.tokens, strict=True):
                        truth[runner.engine.request(item.prompt, runner.sampling).prompt] = tokens
                row.append(sample)
                bound = not (isinstance(configuration, Variant) and configuration.one_row)
                same = sample.tokens == row[0].tokens
                assert same or not bound, f"{configuration.name} changed a text of {group[0].category}: {sample.items}"
            yield row


def _run(runner: Runner, configuration: Configuration, group: Group, turn: int) -> Sample:
    with configuration.around if isinstance(configuration, Variant) else nullcontext():
        return runner.run(configuration, group, turn)


def collect(
    rows: Iterator[list[Sample]], total: int, save: Callable[[Sequence[Sample], bool], object]
) -> tuple[list[Sample], bool]:
    """All samples, or those of whole groups until Ctrl-C, and whether it was pressed.

    ``save(samples, interrupted)`` is called whenever a category is done and at the end, so that nothing is lost.
    """
    samples: list[Sample] = []
    started, category = time.monotonic(), ""
    try:
        for done, row in enumerate(rows, start=1):
            if samples and row[0].category != category:
                save(samples, True)
            category = row[0].category
            samples += row
            spent = time.monotonic() - started
            left = spent / done * (total - done)
            print(
                f"\r{done}/{total} {category:<16} {spent:.0f} s, {left:.0f} s left ",
                end="",
                file=sys.stderr,
                flush=True,
            )
    except KeyboardInterrupt:
        print("\ninterrupted: what is known is kept", file=sys.stderr)
        if samples:
            save(samples, True)
        return samples, True
    print(file=sys.stderr)
    save(samples, False)
    return samples, False


def batches(categories: Mapping[str, Sequence[Item]], size: int) -> list[Group]:
    """Whole groups of ``size``; the chat categories, of which each has few prompts, are one. A rest is left out."""
    pooled: dict[str, list[Item]] = {}
    for name, items in categories.items():
        group = "chat" if name in CHAT else name
        pooled.setdefault(group, []).extend(replace(item, category=group) for item in items)
    return [tuple(items[at : at + size]) for items in pooled.values() for at in range(0, len(items) - size + 1, size)]
