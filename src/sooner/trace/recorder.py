"""One request's trace as it grows: header, steps with the pieces of their tokens, footer.

Knows in which order records go. Does not know where they are written, or who drives the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sooner
from sooner.trace.pieces import PieceWriter
from sooner.trace.plain import PlainStep
from sooner.trace.record import footer_record, header_record, step_record

if TYPE_CHECKING:
    from sooner.completion import Completion
    from sooner.engine import Engine, Handle
    from sooner.types import Step

__all__ = ["Recorder"]


class Recorder:
    """Gives the records of one request to ``write``, the header at once.

    ``withhold`` leaves out what the caller wrote (the answer stays, and drafts may quote the prompt). ``more`` goes
    into the header. How much steps say of the model's chances is the engine's ``alternatives`` when the request was
    submitted.
    """

    def __init__(
        self,
        write: Callable[[Mapping[str, Any]], None],
        engine: Engine,
        handle: Handle,
        *,
        withhold: bool = False,
        **more: Any,
    ) -> None:
        self._write = write
        self._engine = engine
        self._prompt_tokens = len(handle.request.prompt)
        self._pieces = PieceWriter(engine.codec)
        self._plain = PlainStep()
        self._tokens = 0
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        write(header_record(engine, handle, withhold=withhold, sooner=sooner.__version__, time=now, **more))
        if not withhold:
            self._explain(iter((*handle.request.prompt, *handle.request.expected)))

    def step(self, step: Step) -> None:
        """Record one step of the request."""
        self._tokens += len(step.tokens)
        if step.index > 0 and step.tokens:
            besides_ms = step.verify_ms + step.overhead_ms
            self._plain.add(step.rows, step.pass_rows, step.draft.parents, step.score_ms, besides_ms)
        self._explain(_ids(step))
        self._write(step_record(step))

    def finish(self, completion: Completion | None, error: str | None = None) -> None:
        """Record the end: the figures, or why there are none."""
        context = self._prompt_tokens + self._tokens / 2
        cost = None if self._engine.cost is None else self._engine.cost.to_dict()
        self._write(footer_record(completion, error, self._plain.estimate(cost, context)))

    def _explain(self, ids: Iterator[int]) -> None:
        record = self._pieces.record(ids)
        if record is not None:
            self._write(record)


def _ids(step: Step) -> Iterator[int]:
    """Every token that a step's record names."""
    yield from step.tokens
    yield from step.draft.tokens
    for row in () if step.odds is None else step.odds.top:
        yield from (token for token, _ in row)
    for entry in step.logprobs or ():
        yield from (token for token, _ in entry.top)
