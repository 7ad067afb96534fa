"""A worker process of a peer: started, asked over a pipe, and stopped while it is not its turn.

Knows processes and JSON lines. Does not know what a peer is.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Worker", "WorkerFailed"]

_LOAD_S = 420.0
_ANSWER_S = 180.0


class WorkerFailed(Exception):
    """A worker that died, hung or said no; the message is one line."""


class Worker:
    """``python script settings`` in a process group of its own; ``log`` keeps what it prints.

    Between requests the whole group is stopped, so that no thread that waits by spinning takes time from another
    peer's turn. Raises `WorkerFailed`.
    """

    def __init__(
        self, python: Path, script: Path, settings: Mapping[str, Any], log: Path, environment: Mapping[str, str]
    ) -> None:
        self._log = log
        with log.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(
                [python, script, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        try:
            greeting = self._read(_LOAD_S)
        except BaseException:
            self.close()
            raise
        self.ready: Sequence[str] = greeting["ready"]
        self.failed: Mapping[str, str] = greeting["failed"]
        self.versions: Mapping[str, str] = greeting["versions"]
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def ask(self, variant: str, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        """What the worker answers: ids or text and count, seconds, ticks."""
        self._signal(signal.SIGCONT)
        try:
            request = {"variant": variant, "prompt": list(prompt), "max_tokens": max_tokens}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._read(_ANSWER_S)
        except BrokenPipeError:
            raise WorkerFailed(self._last_words()) from None
        finally:
            self._signal(signal.SIGSTOP)
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer

    def close(self) -> None:
        """End the process group."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                raise WorkerFailed(f"no answer within {seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        code = self._process.wait(10)
        lines = [line.strip() for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "it said nothing")
        return f"died with exit code {code}: {last}"[:240]
