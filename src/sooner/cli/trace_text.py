"""A trace's text with its drafted tokens in brackets, and the table of its steps.

Knows records and how a terminal shows them. Does not know commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from sooner.cli.output import printable, say
from sooner.cli.render import decisions, legend
from sooner.text import Detokenizer
from sooner.trace import Pieces, Trace, read_step
from sooner.types import TARGET

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["show_trace"]

_BRACKETS = ("[]", "{}", "<>", "()", "«»", "‹›")
_COLOURS = ("green", "yellow", "magenta", "blue", "cyan", "bright_green")
_BLOCK = 64
"""Steps of a table that are set at once."""


class _Marks:
    """The brackets and the colour of each drafter, by order of appearance."""

    def __init__(self) -> None:
        self._looks = cycle(zip(_BRACKETS, _COLOURS, strict=True))
        self._known: dict[str, tuple[str, str]] = {}

    def of(self, source: str) -> tuple[str, str]:
        """Brackets and colour of a drafter."""
        if source not in self._known:
            self._known[source] = next(self._looks)
        return self._known[source]

    def legend(self) -> Text:
        """Who has which brackets."""
        parts = [Text(f"{b[0]}{source}{b[1]}", style=colour) for source, (b, colour) in self._known.items()]
        return Text("  ").join([*parts, Text("the target's own tokens are bare", style="dim")])


def show_trace(console: Console, path: Path, choice: int, first: int, end: int | None) -> bool:
    """Print steps ``first`` to ``end`` of an answer; False if there is none. Reads the file twice, holds a block."""
    marks, shown, more = _Marks(), 0, False
    with Trace(path) as trace:
        detokenizer = Detokenizer(trace.pieces.token_bytes)
        for record in trace:
            if record["choice"] != choice or record["index"] < first:
                continue
            if end is not None and record["index"] >= end:
                more = True
                break
            if not shown:
                _facts(console, trace)
            shown += 1
            console.print(_marked(record, trace.pieces, detokenizer, marks), end="", soft_wrap=True)
        if not shown:
            return False
        console.print(printable(detokenizer.flush()) + "\n", markup=False)
        trace.skip()
        footer = trace.footer
    console.print(marks.legend())
    console.print()
    _steps(console, path, choice, first, end)
    if more:
        say(f"more steps follow: --from {end} shows them, --all everything", style="")
    if footer is None:
        say("the trace was cut off: it has no footer", style="yellow")
    elif footer.get("error"):
        say(f"the trace ends with an error: {footer['error']}", style="yellow")
    return True


def _facts(console: Console, trace: Trace) -> None:
    header = trace.header
    facts = [str(header.get("model") or "a model"), f"drafter {header.get('drafter')}"]
    facts += [f"{header.get('prompt_tokens')} prompt tokens", f"seed {header.get('seed')}", str(header.get("time"))]
    console.print(Text(" · ".join(facts), style="dim"))
    if header.get("lossless") is False:
        console.print(Text("LOSSY: the rule changes what the model would have written", style="bold red"))
    console.print()


def _marked(record: dict[str, Any], pieces: Pieces, detokenizer: Detokenizer, marks: _Marks) -> Text:
    """A step's text; what one drafter guessed in a row is in its brackets."""
    text, inside = Text(), TARGET
    for token, source in zip(record["tokens"], record["sources"], strict=True):
        if not pieces.token_bytes(token):
            continue
        if source != inside:
            text += _edge(inside, marks, 1) + _edge(source, marks, 0)
            inside = source
        style = "" if source == TARGET else f"underline {marks.of(source)[1]}"
        text.append(printable(detokenizer.push(token)), style=style)
    return text + _edge(inside, marks, 1)


def _edge(source: str, marks: _Marks, side: int) -> Text:
    if source == TARGET:
        return Text()
    brackets, colour = marks.of(source)
    return Text(brackets[side], style=f"bold {colour}")


def _steps(console: Console, path: Path, choice: int, first: int, end: int | None) -> None:
    """The table, block by block."""
    console.print(legend())
    with Trace(path) as trace:
        rows: list[dict[str, Any]] = []
        for record in trace:
            if record["choice"] == choice and record["index"] >= first:
                if end is not None and record["index"] >= end:
                    break
                rows.append(record)
            if len(rows) == _BLOCK:
                console.print(_table(rows, trace.pieces))
                rows = []
        if rows:
            console.print(_table(rows, trace.pieces))


def _table(rows: Sequence[dict[str, Any]], pieces: Pieces) -> Table:
    table = Table(box=None, pad_edge=False, expand=True, header_style="bold")
    table.add_column("step", justify="right", width=6, style="dim")
    table.add_column("at ms", justify="right", width=9, style="dim")
    table.add_column("draft, and the target's own token", ratio=1, overflow="fold")
    table.add_column("kept", justify="right", width=6)
    table.add_column("rows", justify="right", width=5, style="dim")
    table.add_column("ms", justify="right", width=8)
    for record in rows:
        step = read_step(record)
        spent = step.draft_ms + step.score_ms + step.verify_ms + step.overhead_ms
        kept = f"{step.accepted}/{len(step.draft)}" if len(step.draft) else "-"
        at = f"{step.at_ms:.1f}" if step.at_ms else ""
        table.add_row(str(step.index), at, decisions(pieces, step), kept, str(step.rows), f"{spent:.1f}")
    return table
