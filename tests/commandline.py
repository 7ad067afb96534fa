"""Runs the command line in this process on a toy model: what was printed, and the exit code."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sooner.cli import main
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.loading import make_drafter
from sooner.targets.toy import ToyTarget
from sooner.types import Rows, Work
from toy import ToyCodec, V


class Joined:
    """A chat template that puts messages one after another."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, tools: object = None
    ) -> str:
        return "".join(str(message.get("content") or "") for message in messages)


class InterruptedTarget(ToyTarget):
    """A toy whose user presses Ctrl-C in pass number ``at``, once."""

    def __init__(self, at: int) -> None:
        super().__init__(V)
        self._left = at

    def score(self, works: Sequence[Work]) -> list[Rows]:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return super().score(works)


class Toy:
    """A loader for `main`; ``options`` are what the command line asked for at the last load, ``loads`` how often."""

    def __init__(self, target: Callable[[], ToyTarget] = lambda: ToyTarget(V), *, template: bool = True) -> None:
        self._target = target
        self._template = Joined() if template else None
        self.options: dict[str, Any] = {}
        self.loads = 0

    def __call__(
        self, model: str | None, *, draft: Any, budget: int | None, progress: Callable[[str], None], **more: Any
    ) -> Engine:
        self.options = {"model": model, "draft": draft, "budget": budget, **more}
        self.loads += 1
        progress("memory: a toy needs none")
        target, codec = self._target(), ToyCodec()
        drafter = make_drafter(draft, target, codec, model="")
        controller = FixedController(8 if budget is None else budget)
        return Engine(target, codec, template=self._template, drafter=drafter, controller=controller, name="toy")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


class _Stream(io.TextIOWrapper):
    def __init__(self, data: bytes = b"", *, terminal: bool = False) -> None:
        self.raw_bytes = io.BytesIO(data)
        super().__init__(self.raw_bytes, encoding="utf-8", write_through=True, newline="")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def invoke(*argv: str, stdin: bytes = b"", load: Callable[..., Engine] | None = None, terminal: bool = False) -> Result:
    """Run ``sooner argv``; ``terminal`` makes stdout and stderr look like one."""
    with _streams(stdin, terminal) as (out, err):
        code = main(argv, load=load or Toy())
    return Result(code, out.raw_bytes.getvalue().decode(), err.raw_bytes.getvalue().decode())


@contextmanager
def _streams(stdin: bytes, terminal: bool) -> Iterator[tuple[_Stream, _Stream]]:
    before = sys.stdin, sys.stdout, sys.stderr
    out, err = _Stream(terminal=terminal), _Stream(terminal=terminal)
    sys.stdin, sys.stdout, sys.stderr = _Stream(stdin), out, err
    try:
        yield out, err
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
