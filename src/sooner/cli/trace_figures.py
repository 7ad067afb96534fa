"""What a trace comes to, as tables. Knows figures and how a terminal shows them, not how they are computed."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from sooner.trace.stats import Stats

__all__ = ["columns", "stats_page"]

_WHY = {
    "steps": "the median of this trace's own steps without a draft",
    "curve": "the machine's measured costs, by how this trace's passes compare with them",
}


def stats_page(console: Console, stats: Stats) -> None:
    """Everything that ``sooner trace stats`` prints."""
    told = stats.to_dict()
    console.print(Text(f"{told['model']} · drafter {told['drafter']}", style="dim"))
    if told["lossless"] is False:
        console.print(Text("LOSSY: the rule changes what the model would have written", style="bold red"))
    console.print(
        f"{told['tokens']} tokens from {told['steps'] + told['choices']} passes; after the first, "
        f"{told['acceptance_length']:.2f} tokens a pass; {told['accepted']} of {told['drafted']} drafted tokens kept",
        markup=False,
    )
    for title, table in (
        ("Acceptance by position", _positions(stats)),
        ("Acceptance by drafter", _drafters(told)),
        ("Tokens a step drafted and kept", _lengths(told)),
        ("Where the time went", _times(told)),
    ):
        if table.row_count:
            console.print(Text(f"\n{title}", style="bold"))
            console.print(table)
    console.print()
    console.print(_speed(told), markup=False)


def columns(*titles: str) -> Table:
    """An empty table: a column of names, and columns of figures."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, title in enumerate(titles):
        table.add_column(title, justify="left" if i == 0 else "right")
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _positions(stats: Stats) -> Table:
    table = columns("position", "drafts", "kept", "of the drafts", "of those kept before", "")
    for i, one in enumerate(stats.positions, start=1):
        bar = Text("█" * round(20 * (one.rate or 0.0)), style="green")
        table.add_row(str(i), str(one.drafts), str(one.kept), _share(one.rate), _share(one.given_before), bar)
    table.columns[-1].justify = "left"
    return table


def _drafters(told: dict[str, Any]) -> Table:
    table = columns("drafter", "drafted", "kept", "share", "claimed", "agreed")
    for name, one in sorted(told["drafters"].items(), key=lambda item: -item[1]["accepted"]):
        share = one["accepted"] / one["drafted"]
        table.add_row(
            name, str(one["drafted"]), str(one["accepted"]), *map(_share, (share, one["claimed"], one["agreed"]))
        )
    return table


def _lengths(told: dict[str, Any]) -> Table:
    table = columns("tokens", "steps that drafted so many", "steps that kept so many")
    pairs = zip_longest(told["drafted_histogram"], told["kept_histogram"], fillvalue=0)
    for length, (drafted, kept) in enumerate(pairs):
        if told["drafted"] and (drafted or kept):
            table.add_row(str(length), str(drafted), str(kept))
    return table


def _times(told: dict[str, Any]) -> Table:
    names = {
        "prompt": "to the first token",
        "draft": "drafting",
        "score": "the model's passes",
        "verify": "verifying",
        "overhead": "the rest",
    }
    table = columns("", "ms", "ms a step", "share")
    decoding = sum(ms for name, ms in told["time_ms"].items() if name != "prompt")
    for name, ms in told["time_ms"].items():
        if name == "prompt":
            table.add_row(names[name], f"{ms:.1f}", "", "")
        elif told["steps"]:
            table.add_row(
                names[name], f"{ms:.1f}", f"{ms / told['steps']:.2f}", _share(ms / decoding if decoding else None)
            )
    return table


def _speed(told: dict[str, Any]) -> str:
    if not told["tokens_per_second"]:
        return "speed: nothing was decoded after the first token"
    speed = f"speed: {told['tokens_per_second']:.1f} tokens/s after the first token"
    if told["speed_up"] is None:
        return f"{speed}; what plain decoding would take cannot be told from this trace"
    plain = 1e3 / told["plain_ms"]
    return (
        f"{speed}; plain decoding about {plain:.1f}, so about {told['speed_up']:.2f} times as fast "
        f"({told['plain_ms']:.1f} ms a plain step: {_WHY.get(told['plain_from'], 'as the trace says')})"
    )
