"""The worker's end of the pipe: loads what it is asked to, then answers one prompt after another, and times itself.

Knows JSON lines and the clock. Does not know any library; the workers beside it know one each. Runs in the peer's own
environment, so it imports nothing of sooner.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["Clock", "Generate", "serve"]


class Clock:
    """When tokens came: ``ticks`` holds (tokens so far, seconds since the request) of each piece."""

    def __init__(self) -> None:
        self.ticks: list[tuple[int, float]] = []
        self._begin = time.perf_counter()

    def tick(self, tokens: int) -> None:
        """``tokens`` have come by now; a piece without new ones is no piece."""
        if tokens > (self.ticks[-1][0] if self.ticks else 0):
            self.ticks.append((tokens, time.perf_counter() - self._begin))

    @property
    def seconds(self) -> float:
        """Since the request."""
        return time.perf_counter() - self._begin


Generate = Callable[[list[int], int, Clock], dict[str, Any]]
"""Prompt ids and the most new tokens to {"ids": [...]} (or {"text": ..., "count": N} where there are no ids)."""


def serve(load: Callable[[str, dict[str, Any]], Generate], packages: list[str]) -> None:
    """Load every variant named in ``argv[1]`` (JSON: variants, model paths), say so, and answer until the pipe closes.

    A variant that cannot be loaded is told with its reason; the others are served. What libraries print goes to stderr.
    """
    if sys.platform == "linux":  # a worker that was stopped for another's turn would outlive its parent for ever
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])

    def say(message: dict[str, Any]) -> None:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    ready: dict[str, Generate] = {}
    failed: dict[str, str] = {}
    for variant in settings["variants"]:
        try:
            ready[variant] = load(variant, settings)
        except Exception as error:
            traceback.print_exc()
            failed[variant] = _line(error)
    say({"ready": list(ready), "failed": failed, "versions": {name: _version(name) for name in packages}})
    for line in sys.stdin:
        request = json.loads(line)
        clock = Clock()
        try:
            answer = ready[request["variant"]](request["prompt"], request["max_tokens"], clock)
            say({**answer, "seconds": clock.seconds, "ticks": clock.ticks})
        except Exception as error:
            traceback.print_exc()
            say({"error": _line(error)})


def _line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0]}"[:200]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
