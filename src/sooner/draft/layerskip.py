"""The target without some of its sublayers as its draft, over the target's own cache.

Knows a skip set and what drafting with it costs and brings. Does not know graphs, blocks or how the set was found.
(Draft & Verify, Zhang et al. 2309.08168; SWIFT, Xia et al. 2410.06916.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

from sooner.draft.account import Account
from sooner.draft.levels import Job, Levels, Processors
from sooner.draft.options import at_least
from sooner.draft.vocabulary import Same
from sooner.errors import DraftError
from sooner.protocols import Context, Target
from sooner.types import EMPTY_DRAFT, Draft, Rows, Step

__all__ = ["LayerSkipDrafter", "Skippable", "format_skip", "parse_skip"]


class Lender(Target, Protocol):
    """A draft model that reads the cache of the target's live sessions."""

    @property
    def memory(self) -> int:
        """The bytes that it may take besides the target."""
        ...

    def lends(self, tokens: Sequence[int]) -> bool:
        """Whether one of them holds exactly ``tokens``."""
        ...

    def release(self) -> None:
        """Give back what was borrowed for a proposal."""
        ...


@runtime_checkable
class Skippable(Protocol):
    """A target whose sublayers can be left out."""

    def skipping(self, names: Collection[str]) -> Lender:
        """The draft model without the sublayers ``names``; `DraftError` if there are no such, or too few are left."""
        ...


class LayerSkipDrafter:
    """Drafts up to ``max`` tokens, one pass of the shortened target per token, all sequences side by side.

    ``skip``: the sublayers left out, as `parse_skip` reads them; without it the set that ``sooner tune --layerskip``
    found for the model (``tuned_skip``). ``width``: most children per node. ``thrifty``: draft only as deep as pays at
    the pace reached so far, maybe not at all; else always ``max``. Verification writes the drafted positions' cache
    anew, so no second cache and no second prefill is needed. `DraftError` for a skip set that does not fit the model.
    """

    name = "layerskip"

    def __init__(
        self,
        target: Target,
        *,
        skip: str = "",
        max: int = 6,
        width: int = 1,
        thrifty: bool = True,
        eos_ids: Sequence[int] = (),
        tuned_skip: Callable[[], str] = lambda: "",
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._max = at_least(1, max=max)
        self._width = at_least(1, width=width)
        if not isinstance(target, Skippable):
            raise DraftError("drafter layerskip needs a target whose layers can be left out: use an OpenVINO model")
        chosen = skip or tuned_skip()
        if not chosen:
            raise DraftError(
                "no skip set is known for this model on this machine: sooner tune --layerskip finds one, "
                "or name what to leave out, as in kind=layerskip,skip=5-8+12m"
            )
        self._short = target.skipping(parse_skip(chosen))
        say(
            f"memory: the model without {chosen} takes up to {self._short.memory / 2**20:.0f} MB besides the target, "
            "no cache of its own"
        )
        self._levels = Levels(self._short, self.name)
        self._tongue = Same(target.vocab_size, self._short.vocab_size)
        self._processors = Processors(target.vocab_size, eos_ids)
        self._eos_ids = frozenset(eos_ids)
        self._account = Account(self.name, self._max) if thrifty else None

    def reach(self, context: Context) -> float:
        """Tokens of the text that a draft of full depth foresees in the mean (see `cascade.Costly`)."""
        return self._account.reach(context) if self._account else float("inf")

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        """A chain, or with ``width`` a chain with siblings, per context; nothing where that does not pay."""
        depths = self._account.depths(contexts) if self._account else [self._max] * len(contexts)
        asked = {
            context.id: (context, depth)
            for context, depth in zip(contexts, depths, strict=True)
            if depth and self._short.lends(context.tokens[:-1])
        }
        if not asked:
            return [EMPTY_DRAFT] * len(contexts)
        try:
            drafts = self._levels.propose([self._job(*each) for each in asked.values()])
        finally:
            self._short.release()
        if self._account:
            served = [context for context, _ in asked.values()]
            self._account.drafted(served, drafts, self._levels.level_ms, self._levels.read_ms)
        found = dict(zip(asked, drafts, strict=True))
        return [found.get(context.id, EMPTY_DRAFT) for context in contexts]

    def observe(self, step: Step, rows: Rows) -> None:
        """Learn how often levels are right, what of them was kept, and the pace."""
        if self._account:
            self._account.observe(step)

    def forget(self, id: int) -> None:
        """The sequence ended."""
        self._levels.forget(id)
        self._processors.forget(id)
        if self._account:
            self._account.forget(id)

    def _job(self, context: Context, depth: int) -> Job:
        ends: frozenset[int] = frozenset() if context.sampling.ignore_eos else self._eos_ids
        processor = self._processors.read(context)
        return Job(context, context.tokens, self._tongue, processor, depth, self._width, ends)


_PART = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?([am]?)")


def parse_skip(text: str) -> frozenset[str]:
    """Sublayer names such as ``5a`` and ``5m`` from ``5-8+12m``: whole layers, ranges of them, or one half (a for
    attention, m for the MLP) of either. `DraftError` if it cannot be read."""
    names: set[str] = set()
    for part in text.split("+"):
        match = _PART.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise DraftError(
                f"cannot read the skip set {text!r} at {part.strip()!r}: write layers, ranges and halves (a or m) of "
                "them, as in 5-8+12m"
            )
        layers = range(int(match[1]), int(match[2] or match[1]) + 1)
        names |= {f"{layer}{half}" for layer in layers for half in match[3] or "am"}
    return frozenset(names)


def format_skip(names: Collection[str]) -> str:
    """What `parse_skip` reads as ``names``, as short as it gets."""
    halves = {half: {int(name[:-1]) for name in names if name[-1] == half} for half in "am"}
    both = halves["a"] & halves["m"]
    parts = [(layers, "") for layers in _runs(both)]
    parts += [(layers, half) for half in "am" for layers in _runs(halves[half] - both)]
    return "+".join((f"{first}-{last}" if last > first else f"{first}") + half for (first, last), half in sorted(parts))


def _runs(layers: Collection[int]) -> list[tuple[int, int]]:
    """The ranges (first, last) that make up ``layers``."""
    found: list[tuple[int, int]] = []
    for layer in sorted(layers):
        if found and found[-1][1] == layer - 1:
            found[-1] = (found[-1][0], layer)
        else:
            found.append((layer, layer))
    return found
