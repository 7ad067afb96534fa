"""An answer on its way to the user: its steps until the end or Ctrl-C, and the lines after it.

Knows steps and figures. Does not know how a text is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sooner.cli.output import warn

if TYPE_CHECKING:
    from rich.text import Text

    from sooner.completion import Completion
    from sooner.engine import Engine, Handle
    from sooner.types import Step

__all__ = ["fingerprint_line", "follow", "summary", "warn_about"]


def follow(engine: Engine, handle: Handle, show: Callable[[Step], None]) -> bool:
    """Give each step of ``handle`` to ``show`` until the end or Ctrl-C; returns whether it was pressed.

    Then the request is aborted, and the last step carries the text that was held back.
    """
    seen = 0
    try:
        for step in engine.follow(handle):
            seen += 1
            show(step)
    except KeyboardInterrupt:
        engine.abort(handle)
        for step in handle.steps[seen:]:
            show(step)
        return True
    return False


def fingerprint_line(completion: Completion) -> str:
    """All that the text depends on besides prompt and options."""
    facts = ", ".join(f"{name} {value}" for name, value in completion.fingerprint.items())
    return f"fingerprint: seed {completion.seed}, {facts}"


def summary(completion: Completion, *, seed: bool = False) -> Text:
    """The line after a text: tokens, speed, first token, acceptance length, drafter, and the ``seed`` if it matters."""
    from rich.text import Text

    spoken, timings = completion.speculation, completion.timings
    tokens = sum(choice.usage.completion_tokens for choice in completion.choices)
    facts = [
        f"{tokens} token{'s' if tokens != 1 else ''}",
        f"{timings.tokens_per_second:.1f} tokens/s",
        f"TTFT {timings.ttft_ms:.0f} ms",
        f"acceptance length {spoken.acceptance_length:.2f}",
        f"drafter {spoken.drafter}",
    ]
    if not spoken.lossless or spoken.verify != "coupled":
        facts.append(f"verify {spoken.verify}")
    if seed:
        facts.append(f"seed {completion.seed}")
    if completion.finish_reason != "stop":
        facts.append({"length": "length limit", "abort": "interrupted"}.get(completion.finish_reason, "failed"))
    lossy = () if spoken.lossless else ((" · ", "dim"), ("LOSSY", "bold red"))
    return Text.assemble((" · ".join(facts), "dim"), *lossy)


def warn_about(completion: Completion) -> None:
    """Print what the completions complain of, each complaint once."""
    for warning in dict.fromkeys(choice.speculation.warning for choice in completion.choices):
        if warning:
            warn(warning)
