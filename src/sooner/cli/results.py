"""Where a workload's result goes: a table on a terminal, files for programs and documents.

Knows files and columns. Does not know how a figure comes about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sooner.cli.output import say, tables
from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from sooner.bench.runner import Runner, Sample
    from sooner.bench.summary import Figures

__all__ = ["Outputs", "complain", "print_table", "prove_writable", "write_result"]

_TOLD = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "ignore_eos")
"""What of the sampling a result states: all that has an option here."""


class Outputs:
    """The files a result goes to, proven writable before anything is measured. Raises `InvalidRequest`."""

    def __init__(self, json: str | None, csv: str | None, markdown: str | None) -> None:
        self._files = {"json": json, "csv": csv, "markdown": markdown}
        named = [file for file in self._files.values() if file is not None]
        if len(set(named)) < len(named):
            raise InvalidRequest("--json, --csv and --markdown name one place: give each a file of its own")
        for file in named:
            if file != "-":
                prove_writable(Path(file))

    @property
    def to_stdout(self) -> bool:
        """Whether a file takes the table's place."""
        return "-" in self._files.values()

    def write(
        self, runner: Runner, figures: Sequence[Figures], samples: Sequence[Sample], options: Mapping[str, Any]
    ) -> None:
        """Write each file whole."""
        from json import dumps

        from sooner.bench.report import as_csv, as_json, as_markdown

        engine, sampling = runner.engine, runner.sampling
        told = {name: getattr(sampling, name) for name in _TOLD}
        more = {"model": engine.name, "sampling": told, **options}
        caption = ", ".join([engine.name, *(f"{name} {value}" for name, value in options.items() if value)])
        record = as_json(figures, samples, fingerprint=engine.fingerprint, **more)
        texts = {
            "json": dumps(record, indent=1, ensure_ascii=False) + "\n",
            "csv": as_csv(samples),
            "markdown": as_markdown(figures, caption),
        }
        for kind, file in self._files.items():
            if file == "-":
                print(texts[kind], end="", flush=True)
            elif file is not None:
                write_result(Path(file), texts[kind])


def prove_writable(path: Path) -> None:
    """Raise `InvalidRequest` if a result cannot be written to ``path``, before anything is computed for it."""
    new = not path.exists()
    try:
        path.open("a").close()
        if new:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def write_result(path: Path, text: str) -> None:
    """Write a result whole. Raises `InvalidRequest`."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> InvalidRequest:
    return InvalidRequest(f"the result {path} cannot be written ({error.strerror or error}): give another path")


def print_table(figures: Sequence[Figures]) -> None:
    """The figures by category on stdout."""
    from rich.table import Table

    from sooner.bench.report import COLUMNS, cells

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", overflow="fold")
    for column in COLUMNS[2:]:
        ratio = column in ("speed-up", "before loops")
        table.add_column(column.replace(" ", "\n"), justify="right", min_width=19 if ratio else None)
    last = None
    for one in figures:
        _, name, *rest = cells(one)
        if one.category != last:
            table.add_row(one.category, style="bold")
            last = one.category
        table.add_row(f"  {name}", *rest)
    tables().print(table)


def complain(figures: Sequence[Figures]) -> None:
    """One line on stderr for each configuration under which texts differ."""
    for name in dict.fromkeys(one.configuration for one in figures if one.differing):
        say(
            f"NOT identical: under {name} texts differ from the plain ones, so there is no speed-up to speak of; "
            "the rows of this model depend on how they are scored on this machine: see sooner doctor",
            style="bold red",
        )
