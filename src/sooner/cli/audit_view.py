"""How an audit looks while it runs and when it is done. Knows bars, tables and files. Does not know what is audited."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sooner.cli.failures import INTERRUPTED
from sooner.cli.output import notes, say, tables
from sooner.cli.results import write_result

if TYPE_CHECKING:
    from rich.console import Console

    from sooner.audit.page import Told

__all__ = ["minutes", "repeating", "show", "waiting", "watching"]


def waiting() -> None:
    """Said once while another process runs the same audit."""
    say("waiting: another process runs this very audit")


def minutes(seconds: float) -> str:
    """A length of time in words."""
    return f"{max(5.0, seconds):.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"


@contextmanager
def watching(what: str, total: int, known: int = 0) -> Iterator[Callable[[int, str], None]]:
    """A bar on a terminal, elsewhere a line for every tenth; Ctrl-C ends it with a word and its exit code.

    ``known``: of the work, what an earlier run has done.
    """
    console = notes()
    plain = not console.is_terminal or console.is_dumb_terminal
    with _lines(total, known) if plain else _bar(console, what, total, known) as tell:
        try:
            yield tell
        except KeyboardInterrupt:
            say("stopped: the same command goes on from here")
            raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _lines(total: int, known: int) -> Iterator[Callable[[int, str], None]]:
    begun, told = time.monotonic(), 0

    def tell(done: int, word: str) -> None:
        nonlocal told
        percent = min(100, 100 * done // max(1, total))
        if percent // 10 > told // 10:
            told = percent
            pace = (time.monotonic() - begun) / max(1, done - known)
            left = f", about {minutes(pace * (total - done))} left" if done > known else ""
            say(f"{percent} %{left} ({word})")

    yield tell


@contextmanager
def _bar(console: Console, what: str, total: int, known: int) -> Iterator[Callable[[int, str], None]]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(what),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[word]}", markup=False),
    )
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=2, speed_estimate_period=900.0
    ) as progress:
        task = progress.add_task(what, total=total, completed=known, word="")
        yield lambda done, word: progress.update(task, completed=max(done, known), word=word)


def show(report: Told, json: str | None, html: str | None) -> None:
    """The report on stdout, and in files."""
    from json import dumps

    from sooner.audit.page import as_html

    if json is not None:
        write_result(Path(json), dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n")
    if html is not None:
        write_result(Path(html), as_html(report))
    _print(report)


def _print(report: Told) -> None:
    from rich.table import Table

    console = tables()
    for section in report.sections():
        if section.brief:
            console.print(section.brief, markup=False, style="bold red" if "MISSED" in section.brief else "")
            continue
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", title_justify="left")
        for i, column in enumerate(section.columns):
            number = bool(section.rows) and section.rows[0][i].replace(",", "").replace(".", "").isdecimal()
            table.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in section.rows:
            table.add_row(*(_styled(cell) for cell in row))
        console.print(table)
        console.print()
    style = {0: "bold green", 1: "bold red", 2: "bold yellow"}[report.exit_code]
    console.print()
    console.print(report.sentence, style=style, markup=False)
    console.print(f"again: {report.command}", style="dim", markup=False, soft_wrap=True)


def _styled(cell: str) -> Any:
    from rich.text import Text

    style = {"identical": "green", "caught": "green", "MISSED": "bold red"}.get(cell, "")
    return Text(cell, style=style or ("red" if "differ:" in cell or cell.endswith(" !") else ""))


_UNSAID = ("json", "html", "restart", "verbose", "api_key")
"""Options that change nothing about what is audited, and the one that is secret."""


def repeating(context: typer.Context) -> str:
    """The command that repeats the audit: what was given on the command line, without files and secrets."""
    from shlex import quote

    words = ["sooner", "audit"]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE" or parameter.name in _UNSAID:
            continue
        value = context.params[parameter.name or ""]
        option = next((name for name in parameter.opts if name.startswith("--")), None)
        if value is True and option:
            words.append(option)
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [option, quote(str(one))] if option else [quote(str(one))]
    return " ".join(words)
