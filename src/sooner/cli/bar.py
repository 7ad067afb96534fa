"""A progress bar on a terminal's stderr, and nothing anywhere else. Knows counts. Does not know what is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sooner.cli.output import notes

__all__ = ["bar"]


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
