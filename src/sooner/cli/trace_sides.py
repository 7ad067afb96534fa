"""Two traces side by side: where they part, what was asked differently, their steps and figures.

Knows differences and how a terminal shows them. Does not know how they are found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from sooner.cli.output import printable
from sooner.cli.render import decisions
from sooner.cli.trace_figures import columns
from sooner.trace import read_step

if TYPE_CHECKING:
    from rich.console import Console

    from sooner.trace.difference import Difference, Setting, Side
    from sooner.trace.stats import Stats

__all__ = ["difference_page"]


def difference_page(
    console: Console, names: tuple[str, str], found: Difference, asked: Sequence[Setting], figures: Sequence[Stats]
) -> None:
    """Everything that ``sooner trace diff`` prints."""
    console.print(f"A {names[0]}\nB {names[1]}\n", markup=False)
    if asked:
        console.print(Text("Settings that differ", style="bold"))
        table = columns("", "A", "B")
        for name, *values in asked:
            table.add_row(name, *map(_short, values))
        console.print(table)
        console.print()
    _verdict(console, found)
    console.print(Text("\nSteps side by side", style="bold"))
    console.print(_side_by_side(found))
    console.print(Text("\nFigures", style="bold"))
    console.print(_both(figures))


def _verdict(console: Console, found: Difference) -> None:
    if found.position is None:
        if found.same:
            console.print(Text.assemble(("the same text", "bold green"), f", {found.a.count} tokens"))
        else:
            ends = " and ".join(_end(side) for side in (found.a, found.b))
            console.print(Text.assemble(("the same tokens", "bold red"), f", but they end otherwise: {ends}"))
        return
    where = f" at position {found.position}" + (f" of answer {found.choice + 1}" if found.choice else "")
    console.print(Text.assemble(("the texts part", "bold red"), where))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("both", Text(_one_line(found.a.read(found.before))))
    for name, side in (("A", found.a), ("B", found.b)):
        table.add_row(name, Text(_one_line(side.read(side.tokens)) if side.tokens else _end(side), style="bold"))
    console.print(table)


def _end(side: Side) -> str:
    if side.finish is None:
        return "cut off"
    detail = side.finish.get("detail")
    return f"{side.finish['reason']}" + ("" if detail is None else f" ({detail})")


def _side_by_side(found: Difference) -> Table:
    table = Table(box=None, pad_edge=False, expand=True, header_style="dim")
    table.add_column("position", justify="right", width=8, style="dim")
    for name in ("A", "B"):
        table.add_column(name, ratio=1, overflow="fold")
    steps = [dict(side.steps) for side in (found.a, found.b)]
    for position in sorted({*steps[0], *steps[1]}):
        cells = []
        for side, at in zip((found.a, found.b), steps, strict=True):
            record = at.get(position)
            cells.append(Text() if record is None else decisions(side.pieces, read_step(record)))
        table.add_row(str(position), *cells)
    return table


def _both(figures: Sequence[Stats]) -> Table:
    table = columns("", "A", "B")
    told = [one.to_dict() for one in figures]
    names = {"tokens": "tokens", "steps": "passes after the first", "drafted": "drafted", "accepted": "kept"}
    for name, title in names.items():
        table.add_row(title, *(f"{one[name]:,}" for one in told))
    table.add_row("tokens a pass", *(f"{one['acceptance_length']:.2f}" for one in told))
    table.add_row("to the first token, ms", *(f"{one['time_ms']['prompt']:.1f}" for one in told))
    table.add_row("decoding, ms", *(f"{one['decoding_ms']:.1f}" for one in told))
    table.add_row(
        "tokens/s", *("-" if not one["tokens_per_second"] else f"{one['tokens_per_second']:.1f}" for one in told)
    )
    return table


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return printable(text if len(text) <= 60 else f"{text[:57]}...")


def _one_line(text: str) -> str:
    return printable(text.replace("\n", "↵").replace("\t", "⇥"))
