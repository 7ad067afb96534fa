"""What is seen while something takes long: a spinner with messages, or a bar; on a terminal's stderr only.

Knows counts and one-line messages. Does not know what is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sooner.cli.output import notes, say

if TYPE_CHECKING:
    from rich.status import Status

__all__ = ["bar", "progress"]


@contextmanager
def progress(what: str, *, verbose: bool = False) -> Iterator[Callable[[str], None]]:
    """Where one-line messages go while something long happens: into a spinner on a terminal, else to stderr.

    Percentages become a bar on a terminal and are left out elsewhere. With ``verbose`` all are lines.
    """
    console = notes()
    if verbose:
        yield say
    elif console.is_terminal and not console.is_dumb_terminal:
        with console.status(what, spinner="dots") as status:
            yield lambda message: _show(message, status)
    else:
        yield lambda message: None if message.startswith(_PLAN) or _PERCENT.search(message) else say(message)


def _show(message: str, status: Status) -> None:
    if message.startswith(_KEPT):
        say(message)
    elif not message.startswith(_PLAN):
        status.update(_with_bar(message))


_KEPT = "profile "
"""How messages begin that must not pass by unread in a spinner."""

_PLAN = ("memory:", "tuned:", "draft model: memory:")
"""How messages begin that are for --verbose only: the memory plan, the profile in use."""

_PERCENT = re.compile(r"\b(\d{1,3}) %")


def _with_bar(message: str) -> str:
    """``message`` behind a bar of twenty cells if it holds a percentage."""
    from rich.markup import escape

    found = _PERCENT.search(message)
    if found is None:
        return escape(message)
    cells = min(20, int(found[1]) // 5)
    return f"[green]{'━' * cells}[/green][dim]{'━' * (20 - cells)}[/dim] {escape(message)}"


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar of ``total`` steps titled ``what``; call what it gives once a step, with a word on what is being done."""
    console = notes()
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda word: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[word]}"),
    )
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False
    ) as progress:  # no thread beside what is timed
        task = progress.add_task(what, total=total, word="")
        yield lambda word: progress.update(task, advance=1, word=word, refresh=True)
