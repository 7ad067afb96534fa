"""What could be had: drafters that know the answer, and how much of the text the default drafters know beforehand.

Knows drafts and the plain text of each prompt. Does not know time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from controller_runs import CODE, Truth, Variant, default_drafter

from sooner import tree
from sooner.bench.loops import loop_start
from sooner.bench.runner import Group, Runner
from sooner.draft.cascade import CascadeDrafter
from sooner.engine import Engine
from sooner.loading import DEFAULT_DRAFT
from sooner.protocols import Context, Drafter
from sooner.types import EMPTY_DRAFT, ROOT, Draft, Rows, Sampling, Step

__all__ = ["ANY", "DEPTHS", "Available", "Clairvoyant", "Seen", "Watcher", "availability", "right_path", "tally"]

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Depths at which availability is reported."""

ANY = "any of them"
"""All drafters together, at each token the best of them."""

_ROOM = 24
"""Nodes asked of each drafter, as the controller asks."""


class Clairvoyant:
    """Cuts what a drafter proposes to what will be accepted: the same candidates under a controller that never errs.

    What it costs besides is real: proposing, and the rows that are scored.
    """

    def __init__(self, drafter: Drafter, truth: Truth) -> None:
        self._drafter = drafter
        self._truth = truth

    @property
    def name(self) -> str:
        return self._drafter.name

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        drafts = self._drafter.propose(contexts)
        return [self._right(context, draft) for context, draft in zip(contexts, drafts, strict=True)]

    def observe(self, step: Step, rows: Rows) -> None:
        self._drafter.observe(step, rows)

    def forget(self, id: int) -> None:
        self._drafter.forget(id)

    def _right(self, context: Context, draft: Draft) -> Draft:
        output = self._truth.get(tuple(context.tokens[: context.prompt_length]), ())
        path = right_path(draft, output[len(context.tokens) - context.prompt_length :])
        if not path:
            return EMPTY_DRAFT
        return replace(tree.prune(draft, path), confidence=(1.0,) * len(path))


class Watcher:
    """Asks each of ``members`` at every token, notes what it says and drafts nothing, so that no token is skipped."""

    name = "watcher"

    def __init__(self, members: Sequence[Drafter]) -> None:
        self._members = tuple(members)
        self.notes: list[tuple[int, str, Draft]] = []
        """Output position, member, what it proposed there."""

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        for context in contexts:
            position = len(context.tokens) - context.prompt_length
            asked = replace(context, budget=_ROOM)
            self.notes += [(position, member.name, member.propose([asked])[0]) for member in self._members]
        return [EMPTY_DRAFT] * len(contexts)

    def observe(self, step: Step, rows: Rows) -> None:
        for member in self._members:
            member.observe(step, rows)

    def forget(self, id: int) -> None:
        for member in self._members:
            member.forget(id)


class Seen(NamedTuple):
    """Of one drafter at one token: whether it proposed anything, the place of the right token among its first ones,
    how many tokens it had right ahead."""

    proposed: bool
    rank: int
    depth: int


@dataclass(slots=True)
class Available:
    """Of ``positions`` tokens of text: at how many a drafter ``proposed`` anything, at how many its best one, two or
    three first tokens held the next (``top``), and at how many it had at least d right tokens ahead, by `DEPTHS`
    (``reach``). ``passes``: those a text takes if every right token is scored and no other."""

    positions: int = 0
    proposed: int = 0
    top: list[int] = field(default_factory=lambda: [0, 0, 0])
    reach: list[int] = field(default_factory=lambda: [0] * len(DEPTHS))
    passes: int = 0

    def add(self, seen: Mapping[int, Seen]) -> None:
        """One text, by output position."""
        self.positions += len(seen)
        for proposed, rank, depth in seen.values():
            self.proposed += proposed
            self.top = [count + (rank <= i) for i, count in enumerate(self.top)]
            self.reach = [count + (depth >= least) for least, count in zip(DEPTHS, self.reach, strict=True)]
        at = min(seen, default=0)
        while at in seen:
            self.passes += 1
            at += 1 + seen[at].depth

    @property
    def tokens_per_pass(self) -> float:
        """Acceptance length if every right token is scored."""
        return self.positions / self.passes if self.passes else 1.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "depths": DEPTHS, "tokens_per_pass": self.tokens_per_pass}


def tally(notes: Sequence[tuple[int, str, Draft]], text: Sequence[int], end: int, into: dict[str, Available]) -> None:
    """Count the notes on one text at output positions before ``end``, per member and for `ANY`."""
    found: dict[str, dict[int, Seen]] = {}
    for position, name, draft in notes:
        if position < min(end, len(text)):
            output = text[position:]
            seen = Seen(len(draft) > 0, _rank(draft, output[0]), len(right_path(draft, output)))
            found.setdefault(name, {})[position] = seen
            best = found.setdefault(ANY, {}).setdefault(position, seen)
            found[ANY][position] = Seen(
                best.proposed or seen.proposed, min(best.rank, seen.rank), max(best.depth, seen.depth)
            )
    for name, by_position in found.items():
        into.setdefault(name, Available()).add(by_position)


def right_path(draft: Draft, output: Sequence[int]) -> list[int]:
    """The nodes of ``draft`` that the coming ``output`` walks through."""
    path, at = [], ROOT
    for token in output:
        node = draft.child(at, token)
        if node is None:
            break
        path.append(node)
        at = node
    return path


def _rank(draft: Draft, token: int) -> int:
    """The place of ``token`` among the first tokens by confidence; past all of them if it is none."""
    first = sorted(draft.children(ROOT), key=lambda node: -draft.confidence[node])
    return next((rank for rank, node in enumerate(first) if draft.tokens[node] == token), len(draft.tokens) + 3)


def availability(engine: Engine, groups: Sequence[Group], sampling: Sampling) -> dict[tuple[str, str, str], Available]:
    """By category (and overall), by "all" tokens or those "before loops", by drafter: what it knew beforehand.

    Texts are decoded plainly, one after another: what recycling learns from drafts that failed is not in it.
    """
    drafter = default_drafter(engine)
    assert isinstance(drafter, CascadeDrafter), "the default set is a cascade"
    watcher = Watcher(drafter.members)
    watching = Variant("watching", (DEFAULT_DRAFT,), budget=1, make=lambda engine: watcher)
    runner = Runner(engine, [watching], sampling)
    runner.warm_up()
    tallies: dict[tuple[str, str], dict[str, Available]] = {}
    for group in groups:
        watcher.notes.clear()
        text = runner.run(watching, group, 0).tokens[0]
        category = group[0].category
        for kind, end in (("all", len(text)), ("before loops", loop_start(text))):
            for name in (category,) if category == CODE else (category, "overall"):
                tally(watcher.notes, text, end, tallies.setdefault((name, kind), {}))
    ordered = sorted(tallies.items(), key=lambda entry: entry[0][0] == "overall")
    return {(*key, member): one for key, found in ordered for member, one in found.items()}
