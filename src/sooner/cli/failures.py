"""How a command fails: one line that names the remedy, and an exit code.

0 done; 1 a comparison found a difference, or sooner itself failed; 2 bad input; 130 Ctrl-C. Knows exceptions. Does
not know commands.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from sooner.errors import InvalidRequest, SoonerError

__all__ = ["DIFFERENT", "INTERRUPTED", "REFUSED", "UsageError", "close_streams", "report"]

DIFFERENT, REFUSED, INTERRUPTED = 1, 2, 130

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What the parser raises, whichever of click and typer's own copy of it is in use."""

_FOREIGN = {
    "--draft-max": "--budget",
    "--max-length": "--max-tokens",
    "--max-new-tokens": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--num-speculative-tokens": "--budget",
    "--prompt": "the prompt itself, as the argument",
    "--spec-type": "--draft",
    "--stream": "nothing: text is streamed unless --no-stream is given",
    "--temp": "--temperature",
}
"""What other tools call it."""


_OPTIONS = {"n": "-n", "pool_tokens": "--context"}
"""Parameters whose option has another name."""


def report(error: BaseException) -> int:
    """Say on stderr in one line what went wrong; returns the exit code."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        close_streams()
        return DIFFERENT
    if os.environ.get("SOONER_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, UsageError):
        return _say(_usage(error), REFUSED)
    if isinstance(error, SoonerError):
        return _say(_refusal(error), REFUSED)
    if isinstance(error, OSError) and error.filename is None:  # files are refused by name where they are opened
        close_streams()
        return _say(f"the output cannot be written ({error.strerror or error}): send it elsewhere", REFUSED)
    kind = type(error).__name__
    hint = "run it again with SOONER_DEBUG=1 to see where, and report it"
    return _say(f"sooner failed ({kind}: {error}): {hint}", DIFFERENT)


def close_streams() -> None:
    """The reader is gone: let nothing that is still buffered fail again when the interpreter ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stream without a descriptor has nothing buffered in the system
        pass


def _say(message: str, code: int) -> int:
    from sooner.cli.output import notes

    try:
        console = notes()
        console.print("error:", style="bold red", end=" ")
        console.print(" ".join(message.split()), markup=False)
    except (BrokenPipeError, SystemExit):  # stderr is gone too: the code must do
        close_streams()
    return code


def _refusal(error: SoonerError) -> str:
    """The message, with a parameter under its name on the command line."""
    message = str(error)
    name = error.param if isinstance(error, InvalidRequest) else None
    if name and message.startswith((f"{name} must", f"{name} is for", f"{name} needs torch")):
        return f"{_OPTIONS.get(name) or '--' + name.replace('_', '-')}{message[len(name) :]}"
    return message


def _usage(error: Any) -> str:
    """The parser's complaint and the command that explains."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "sooner"
    option = getattr(error, "option_name", None)
    if option and hasattr(error, "possibilities"):
        return f"there is no option {option}{_suggest(option, context)}; see {command} --help"
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    return f"{message}; see {command} --help"


def _suggest(option: str, context: Any) -> str:
    from difflib import get_close_matches

    known = _option_names(context)
    if option in _FOREIGN and (_FOREIGN[option].split()[0] in known or not _FOREIGN[option].startswith("-")):
        return f": here it is {_FOREIGN[option]}"
    near = get_close_matches(option, known, n=1)
    return f": did you mean {near[0]}?" if near else ""


def _option_names(context: Any) -> Sequence[str]:
    parameters = context.command.params if context is not None else []
    return [name for parameter in parameters for name in parameter.opts if name.startswith("--")]
