"""A whole study: acceptance at several temperatures, lengths in turns, and the record that both come to.

Knows the order of things. Does not know files, tables or plots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sooner.bench.stamp import stamp
from sooner.bench.theory_counts import BIGRAM, UNIGRAM
from sooner.bench.theory_record import Length, acceptance, best, lengths
from sooner.bench.theory_run import Lab
from sooner.bench.workload import Item

__all__ = ["DRAFTERS", "LENGTHS", "TEMPERATURES", "split", "study"]

DRAFTERS = (UNIGRAM, BIGRAM, "ngram", "suffix", "recycle")
"""What is studied where nothing else is asked for: drafters that every model can have."""

LENGTHS = (1, 2, 3, 5, 7, 11, 15)
"""Draft lengths (the paper's gamma): passes of 2 to 16 rows."""

TEMPERATURES = (0.0, 0.8, 1.0)


def split(chosen: Sequence[Item], others: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """What is measured and what counting models are made from: ``others``, as many as measured, else every second."""
    if others:
        return list(chosen), list(others[: max(len(chosen), 8)])
    return list(chosen[::2]), list(chosen[1::2])


def study(
    lab: Lab,
    names: Sequence[str],
    items: Sequence[Item],
    *,
    gammas: Sequence[int] = LENGTHS,
    temperatures: Sequence[float] = TEMPERATURES,
    timed: Sequence[float] = (0.0,),
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Acceptance of the drafters ``names`` at all temperatures, and at those ``timed`` every length against plain.

    Acceptance does not depend on time. Raises what `Lab` raises.
    """
    longest = max(gammas)
    accepted = {}
    for temperature in dict.fromkeys([*temperatures, *timed]):
        say(f"acceptance at temperature {temperature:g}")
        trails = lab.watch(names, items, temperature, longest)
        for name, found in trails.items():
            accepted[name, temperature] = acceptance(name, temperature, found, gammas)
    rows: list[Length] = []
    for temperature in timed:
        taken = []
        for one in lab.sweep(names, gammas, items, temperature):
            taken.append(one)
            say(f"temperature {temperature:g}: text {one.item}, {one.drafter} {one.length or ''}".rstrip())
        rows += lengths(taken, {name: accepted[name, temperature] for name in names})
    return {
        "machine": stamp(),
        "fingerprint": dict(lab.engine.fingerprint),
        "model": lab.engine.name,
        "texts": len(items),
        "max_tokens": lab.sampling.max_tokens,
        "acceptance": [one.to_dict() for one in accepted.values()],
        "lengths": [one.to_dict() for one in rows],
        "best": [one.to_dict() for one in best(rows)],
    }
