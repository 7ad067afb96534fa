"""Lanes: further copies of the graph, each compiled for one width, on which a pass infers no shapes.

Knows widths, what going without a lane has cost, and a way to compile one. Does not know tokens or sessions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from sooner.targets.openvino.runner import Runner

__all__ = ["SINGLE", "WIDTHS", "Lanes"]

WIDTHS = (2, 4, 8, 16, 24, 32)
"""Tokens in one pass for which a lane may be compiled; passes in between are padded up to the next."""

SINGLE = (4, 8, 2, 16)
"""Those that a single text's steps use, the most used first."""

log = logging.getLogger("sooner")


class Lanes:
    """Compiles lanes when they have become worth it, and hands out the narrowest that takes a pass.

    A lane costs a compilation and, in memory, the weights once more; a pass on it is quicker by the shape inference
    of the whole graph. So a width gets its lane once the passes that would have used it have cost as much extra as
    compiling takes (rent until the rent equals the price): never more than twice the cost of knowing the future.
    ``most``: how many there may be. Compiling happens in a thread, beside the passes.
    """

    def __init__(self, compile: Callable[[int], Runner], most: int = len(WIDTHS), compile_ms: float = 2000.0) -> None:
        self.most = most
        self.ready: tuple[int, ...] = ()
        self._compile = compile
        self._compile_ms = compile_ms
        self._runners: dict[int, Runner] = {}
        self._owed = dict.fromkeys(WIDTHS, 0.0)
        self._thread: threading.Thread | None = None

    def find(self, tokens: int) -> tuple[int, Runner] | None:
        """The narrowest lane for a pass of ``tokens`` tokens: its width and runner; None if none is ready.

        A lane more than twice as wide as the pass would cost more than it saves.
        """
        for width in self.ready:
            if width >= tokens:
                return (width, self._runners[width]) if width <= max(2 * tokens, 4) else None
        return None

    def owe(self, tokens: int, ms: float) -> None:
        """A pass of ``tokens`` tokens had no lane and took ``ms`` longer for it."""
        width = next((width for width in WIDTHS if width >= tokens), None)
        if width is None or width in self.ready:
            return
        self._owed[width] += ms
        if self._owed[width] >= self._compile_ms:
            self.warm((width,))

    def warm(self, widths: Sequence[int] = SINGLE) -> None:
        """Compile lanes in a thread, as many as there is room for, without waiting for them."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self.build, args=(widths,), name="sooner-lanes", daemon=False)
            self._thread.start()

    def build(self, widths: Sequence[int] = SINGLE) -> None:
        """Compile lanes now, as many as there is room for. One that fails is the last that is tried."""
        for width in widths:
            if width in self.ready or len(self.ready) >= self.most:
                continue
            if not threading.main_thread().is_alive():
                return  # the program is leaving, and waits for this thread
            try:
                self._runners[width] = self._compile(width)
            except Exception as error:  # out of memory above all: the graph without lanes goes on as before
                log.warning("no lane of width %s, passes go on without: %s", width, error)
                self.most = len(self.ready)
                return
            self.ready = tuple(sorted(self._runners))

    def wait(self) -> None:
        """Until no compilation is under way."""
        if self._thread is not None:
            self._thread.join()

    def drop(self, width: int) -> None:
        """Never use this lane again."""
        self.ready = tuple(one for one in self.ready if one != width)
        self.most = len(self.ready)
        self._runners.pop(width, None)
