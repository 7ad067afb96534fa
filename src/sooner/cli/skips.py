"""The part of ``sooner tune`` that looks for layers which drafts can do without, and says what came of it.

Knows words, texts to search by and where scores are kept. Does not know how a set is judged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sooner.cli.output import say
from sooner.cli.progress import bar
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from sooner.bench.configuration import Configuration
    from sooner.bench.layerskip import Found, Search
    from sooner.bench.workload import Item
    from sooner.engine import Engine

__all__ = ["SkipReport", "configurations_with", "search_skips"]

_TEXTS, _TOKENS = 8, 72
"""Texts to search by, and their length."""

_PROMISING = 1.03
"""Predicted speed-up from which a set is measured like any other drafter."""

_EVERY = 8
"""Measured sets after which their scores are kept, so that a search that is killed loses no more."""


@dataclass(frozen=True, slots=True)
class SkipReport:
    """What the search found, and the private bytes that the shortened graph takes (None: not known, or nothing found).

    ``weights``: the bytes of the model's weights, for comparison.
    """

    found: Found
    memory: int | None
    weights: int | None

    @property
    def promising(self) -> bool:
        """Whether the set is worth being measured like any other drafter."""
        return bool(self.found.skip) and self.found.speed_up >= _PROMISING

    def __str__(self) -> str:
        one = self.found
        later = "" if one.finished else f"; time ran out after {one.tried} sets, the same command goes on from there"
        if not one.skip:
            return f"layer skipping: no set of layers was tried{later}"
        what = (
            f"without {one.text} ({len(one.skip)} of {one.sublayers} sublayers) the model foresees {one.agreement:.0%} "
            f"of its own tokens in {one.cost:.2f} of a plain pass each"
        )
        if not self.promising:
            return (
                f"layer skipping does not pay here: {what}, so that {one.speed_up:.2f} of plain speed is the most to "
                f"expect{'' if one.finished else ' so far'}{later}"
            )
        return f"layer skipping: {what}: {one.speed_up:.2f} times plain speed is to be expected{self._memory()}{later}"

    def _memory(self) -> str:
        if self.memory is None:
            return ""
        share = f", {self.memory / self.weights:.0%} of the weights" if self.weights else ""
        return f"; its graph takes {self.memory / 2**20:.0f} MB more{share}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON output and the profile's facts."""
        one = self.found
        return {
            "skip": one.text,
            "left_out": len(one.skip),
            "sublayers": one.sublayers,
            "agreement": one.agreement,
            "draft_cost": one.cost,
            "depth": one.depth,
            "predicted_speed_up": one.speed_up,
            "tried": one.tried,
            "finished": one.finished,
            "memory_bytes": self.memory,
            "weights_bytes": self.weights,
        }


def search_skips(engine: Engine, items: Sequence[Item], seconds: float) -> SkipReport:
    """Search on texts that the model writes for the first ``items``, for at most ``seconds`` of measuring sets.

    What is measured is kept in the cache directory: the same search again goes on where this one ended. Raises
    `InvalidRequest` for a model whose layers cannot be left out; Ctrl-C ends the search with what is known.
    """
    from sooner.bench.layerskip import Search, to_record
    from sooner.bench.shortened import Sublayers, Windows, measure_costs, measure_memory
    from sooner.store.cache import recall, remember

    target = engine.target
    if not isinstance(target, Sublayers):
        raise InvalidRequest(
            "--layerskip needs a model whose layers can be left out: use an OpenVINO model", "layerskip"
        )
    texts = _texts(engine, items)
    windows = Windows(target, texts)
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()
    key = f"layerskip\n{sorted(target.fingerprint.items())}\n{digest}"
    known = (recall(key) or {}).get("scores", {})
    before = f", going on from {len(known)} sets that were measured before" if known else ""
    say(f"looking for layers to leave out, for at most {seconds:.0f} seconds{before}")
    with windows.opened():
        search = Search(
            windows.names,
            windows.agree,
            measure_costs(target, windows.names),
            {text: (int(hits), int(trials)) for text, (hits, trials) in known.items()},
        )
        windows.agree(frozenset(), True)  # refuses a model whose sublayers were not found rightly
        try:
            _run(search, seconds, lambda: remember(key, {"scores": to_record(search.scores)}))
        except KeyboardInterrupt:
            say("the search for layers to leave out was interrupted: what it found until then counts", style="yellow")
        found = search.found()
    memory = measure_memory(target, found.skip) if found.skip else None
    plan = getattr(target, "plan", None)
    return SkipReport(found, memory, getattr(plan, "weights", None))


def configurations_with(report: SkipReport) -> list[Configuration]:
    """What is measured of a promising set: it alone, and beside the drafters that need no model."""
    from sooner.bench.configuration import parse_configuration

    alone = f"layerskip:skip={report.found.text}"
    return [parse_configuration(text) for text in (alone, f"suffix+recycle+{alone}")] if report.promising else []


def _run(search: Search, seconds: float, keep: Any) -> None:
    try:
        with bar("layers to leave out", 2 * len(search.names)) as done:
            for count, skip in enumerate(search.run(seconds), start=1):
                done(f"without {len(skip)} sublayers")
                if count % _EVERY == 0:
                    keep()
    finally:
        keep()


def _texts(engine: Engine, items: Sequence[Item]) -> list[tuple[list[int], int]]:
    """What the model writes at temperature 0: tokens with the prompt's, and where the answer begins."""
    requests = [engine.request(i.prompt, temperature=0.0, max_tokens=_TOKENS, drafting=False) for i in items[:_TEXTS]]
    drafter, engine.drafter = engine.drafter, None
    try:
        answers = engine.generate_many([request.prompt for request in requests], requests[0].sampling)
    finally:
        engine.drafter = drafter
    return [
        ([*request.prompt, *answer.token_ids], len(request.prompt))
        for request, answer in zip(requests, answers, strict=True)
    ]
