"""Measures a target with sublayers left out: how often it foresees the target's own text, and what its passes cost.

Knows texts, sessions and a clock. Does not know which sublayers to try.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sooner import tree
from sooner.bench.layerskip import DEEPEST, Costs, Score, Skip
from sooner.control.cost import measure_cost
from sooner.errors import InvalidRequest, TargetError
from sooner.protocols import Session, Target
from sooner.targets.openvino.memory import return_freed
from sooner.types import Work

__all__ = ["Sublayers", "Windows", "measure_costs", "measure_memory"]

_LENGTH = 8
"""Tokens of a window: drafts are seldom longer, and what the shortened model writes into the cache lasts no longer."""

_COUNT = 24
"""Windows to search by, and as many to weigh the result by."""

_FEWEST = 4
"""Windows without which nothing can be said."""

_SAME = 0.97
"""With nothing left out, at least so much must agree (rows of long and short passes may differ by a near-tie)."""


@runtime_checkable
class Sublayers(Target, Protocol):
    """A target that can do without some of its sublayers (the OpenVINO target)."""

    def gated(self) -> Any:
        """A draft model with a switch on each of its sublayers ``names``: ``leave_out(names)``."""
        ...

    def skipping(self, names: Collection[str]) -> Any:
        """A draft model without the sublayers ``names``."""
        ...


class Windows:
    """Places in ``texts`` (tokens, and where the answer begins) that the target wrote at temperature 0.

    Every window goes on from the target's own cache, as a draft does. Every other one is kept from the search.
    """

    def __init__(self, target: Sublayers, texts: Sequence[tuple[Sequence[int], int]]) -> None:
        self._target = target
        self._gated = target.gated()
        self.names: tuple[str, ...] = self._gated.names
        self._places = _spread(texts)
        if len(self._places) < _FEWEST:
            raise InvalidRequest("the model's answers are too short to search for layers by: give other prompts")
        self._sessions: list[Session] = []

    @contextmanager
    def opened(self) -> Iterator[Windows]:
        """Hold the windows' texts in the target's cache for as long as this lasts."""
        try:
            for tokens in self._places:
                session = self._target.open(tokens[:-_LENGTH])
                self._sessions.append(session)
                while missing := tokens[len(session.tokens) : -_LENGTH]:
                    self._target.score([Work(session, tuple(missing[:256]), logits=False)])
                    session.settle(())
            yield self
        finally:
            for session in self._sessions:
                session.close()
            self._sessions.clear()

    def agree(self, skip: Skip, seen: bool) -> Score:
        """How many tokens of the windows the model without ``skip`` foresees, of how many.

        Raises `TargetError` if with nothing left out it does not foresee its own text: the surgery is then at fault.
        """
        self._gated.leave_out(skip)
        places = self._places[::2] if seen else self._places[1::2]
        works = [self._work(tokens) for tokens in places]
        hits = 0
        try:
            for tokens, rows in zip(places, self._gated.score(works), strict=True):
                foreseen = rows.logits[: _LENGTH - 1].argmax(axis=1)
                hits += int((foreseen == tokens[1 - _LENGTH :]).sum())
        finally:
            for work in works:
                work.session.close()
        trials = len(places) * (_LENGTH - 1)
        if not skip and hits < _SAME * trials:
            raise TargetError(
                f"with nothing left out the model foresees {hits} of {trials} of its own tokens: its sublayers were "
                "not found rightly, so that layer skipping cannot be used with it"
            )
        return hits, trials

    def _work(self, tokens: Sequence[int]) -> Work:
        session = self._gated.open(tokens[:-_LENGTH])
        first, *rest = tokens[-_LENGTH:]
        return Work(session, (first,), tree.chain(rest, 1.0, "window"))


def _spread(texts: Sequence[tuple[Sequence[int], int]]) -> list[tuple[int, ...]]:
    """Each window as all tokens up to its end: evenly over the answers, at most twice `_COUNT`."""
    found = [
        tuple(tokens[: start + _LENGTH])
        for tokens, begin in texts
        for start in range(begin, len(tokens) - _LENGTH + 1, _LENGTH)
    ]
    step = max(1.0, len(found) / (2 * _COUNT))
    return [found[int(i * step)] for i in range(min(len(found), 2 * _COUNT))]


def measure_costs(
    target: Sublayers, names: Sequence[str], *, repeats: int = 24, clock: Callable[[], float] = time.perf_counter
) -> Costs:
    """What draft passes cost, each kind of sublayer by leaving all of it out (one attention stays), in turns with plain
    passes of the target."""
    halves = {half: [name for name in names if name.endswith(half)] for half in "am"}
    skips = {"": (), "a": halves["a"][1:], "m": halves["m"], "am": halves["a"][1:] + halves["m"]}
    cost = {which: _ratio(target, skip, repeats, clock) for which, skip in skips.items()}
    saved = {half: max(cost[""] - cost[half], 1e-6) for half in halves}
    least = min(cost["am"], cost[""])
    share = (cost[""] - least) / (saved["a"] + saved["m"])
    each = {half: share * saved[half] / max(len(skips[half]), 1) for half in halves}
    curve = measure_cost(target)
    verify = [1.0 + curve.break_even(max(k + 1, 2)) for k in range(DEEPEST + 1)]
    return Costs(cost[""], each["a"], each["m"], least, tuple(verify))


def _ratio(target: Sublayers, skip: Collection[str], repeats: int, clock: Callable[[], float]) -> float:
    """A draft pass over one row in plain passes of the target, in turns."""
    short = target.skipping(skip)
    tokens = tuple((7 * i + 11) % target.vocab_size for i in range(65))
    lender = target.open(salt="shortened")
    times: tuple[list[float], list[float]] = ([], [])
    try:
        target.score([Work(lender, tokens[:64], logits=False)])
        lender.settle(())
        for _ in range(repeats):
            begin = clock()
            session = short.open(tokens[:64])
            short.score([Work(session, tokens[64:])])
            session.close()
            middle = clock()
            target.score([Work(lender, tokens[64:])])
            times[0].append(middle - begin)
            times[1].append(clock() - middle)
            lender.sync(tokens[:64])
    finally:
        lender.close()
    quick = [statistics.quantiles(some[2:], n=4)[0] for some in times]
    return quick[0] / quick[1]


def measure_memory(target: Sublayers, skip: Collection[str]) -> int | None:
    """The private bytes that the graph without ``skip`` takes besides the target's; None where the system does not say.

    Model files are mapped and shared; the weights that are left are packed once more, nodes and buffers come on top.
    What earlier graphs left behind goes back to the system first, or a new one would seem to take next to nothing.
    """
    before = _private_bytes()
    short = target.skipping(skip)
    after = _private_bytes()
    del short
    return None if before is None or after is None else max(0, after - before)


def _private_bytes() -> int | None:
    gc.collect()
    return_freed()
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:")), None)
