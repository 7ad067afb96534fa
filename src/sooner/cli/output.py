"""Where output goes: text to stdout as it comes, everything else to stderr, nothing fancy where no terminal is.

Knows streams and terminals. Does not know what the text means.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Output", "notes", "print_json", "printable", "say", "tables", "warn"]

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
"""What a model must not send to a terminal: it could move the cursor or set its title."""


def notes() -> Console:
    """The console of everything that is not the text: stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def tables() -> Console:
    """The console of reports that are what a command was asked for: stdout."""
    from rich.console import Console

    return Console(highlight=False)


def say(text: str, style: str = "dim") -> None:
    """One line on stderr."""
    notes().print(text, style=style, markup=False)


def warn(text: str) -> None:
    """One warning line on stderr."""
    say(f"warning: {text}", style="yellow")


def print_json(value: Any) -> None:
    """One JSON document on one line of stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def printable(text: str) -> str:
    """``text`` without control characters, as a terminal may have it."""
    return text.translate(_CONTROLS)


class Output:
    """Text on its way to stdout, piece by piece; on a terminal without control characters.

    As a context manager it ends the text with a newline, whatever happened, so that the shell's prompt or an error
    starts on a line of its own.
    """

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._last = "\n"

    def write(self, text: str) -> None:
        """Print ``text`` at once."""
        if text:
            self._last = text[-1]
            sys.stdout.write(printable(text) if self._terminal else text)
            sys.stdout.flush()

    def end(self) -> None:
        """Start a new line unless the text ended with one."""
        if self._last != "\n":
            self.write("\n")

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, BrokenPipeError):
            self.end()
