"""The command ``sooner``: one file per command, and one place where failures become a line and an exit code.

Knows the commands. Does not know what they do; nothing heavy is imported until a command runs.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sooner.cli.engine import Loader

__all__ = ["main"]

PAIRS = 3
"""Pairs of ``--compare`` without a number."""


def main(argv: Sequence[str] | None = None, *, load: Loader | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit code; never raises.

    ``load`` makes engines in place of `sooner.load`, for tests and for programs that bring their own model.
    """
    _prepare_streams()
    try:
        return _run(sys.argv[1:] if argv is None else argv, load)
    except KeyboardInterrupt:  # while the libraries are being imported, or a failure is being told
        return 130


def _run(argv: Sequence[str], load: Loader | None) -> int:
    from sooner.cli.failures import close_streams, report

    try:
        from typer.main import get_command

        from sooner.cli.app import app

        result = get_command(app).main(_with_pairs(argv), prog_name="sooner", standalone_mode=False, obj=load)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except SystemExit as stop:  # the libraries' own way out when a reader is gone
        close_streams()
        return stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:
        return report(error)


def _prepare_streams() -> None:
    """Never fail for want of a stream or an encoding: what a terminal cannot show becomes a question mark."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed before we began, as by >&-
            nowhere = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115 - for good
            setattr(sys, name, nowhere)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _with_pairs(arguments: Sequence[str]) -> list[str]:
    """``--compare`` takes a number or none; the parser knows only options that always take one."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    for i, word in enumerate(given[:end]):
        if word == "--compare" and not (i + 1 < end and given[i + 1].lstrip("-").isdecimal()):
            given[i] = f"--compare={PAIRS}"
    return given
