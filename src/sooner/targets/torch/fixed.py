"""Passes of fixed shapes: all slots side by side, padded rows, padded cache; compiled, or one shape for everything.

Knows how works are cut into pieces that fit a shape, and what a captured graph needs. Does not know sessions.

``strict``: every pass has the same shape, so that the kernels have no choice; branches are scored as chains, one after
another, since a mask would move their entries. It costs the rows of the shape for every pass, and a pass for every
branch. Otherwise a few shapes, a tree under a mask, and a captured graph for each: what small steps on GPUs want.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sooner.errors import TargetError, one_line
from sooner.targets.torch.attention import Fixed
from sooner.targets.torch.device import out_of_memory
from sooner.targets.torch.layout import RowRule
from sooner.targets.torch.runner import Held, Runner, Scored, as_numpy
from sooner.targets.torch.session import Keep
from sooner.tree import paths
from sooner.types import ROOT, Logits, Work

__all__ = ["FixedRunner", "Piece", "pieces"]

STRICT_ROWS = 16
"""Rows of each slot in the one shape of ``strict``."""

ROWS = (4, 8, 16, 32, 64, 128, 256)
"""Rows of each slot in compiled shapes; longer prompts go in pieces of `_PROMPT`."""

_PROMPT = 64


@dataclass(slots=True)
class Piece:
    """Rows of one slot in one pass. ``above[i]``: the row above row i, -1 for one that follows settled entries.

    ``places``: where entries go; ``positions``: depth in the text (a place differs from it on branches under a mask).
    ``read``: (row, which of the work's rows it is).
    """

    slot: int
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    above: list[int] = field(default_factory=list)
    read: list[tuple[int, int]] = field(default_factory=list)

    def add(self, token: int, position: int, place: int, above: int) -> None:
        """One more row."""
        self.tokens.append(token)
        self.positions.append(position)
        self.places.append(place)
        self.above.append(above)


def pieces(work: Work, slot: int, held: int, rows: int, *, chains: bool) -> list[Piece]:
    """``work`` in pieces of at most ``rows`` rows: branches as ``chains`` one after another, the main one last; or
    the tokens in pieces and the tree under a mask behind the last of them."""
    draft, k = work.draft, len(work.tokens)
    if not chains:
        head = max(0, k - 1 - (k - 1) % _PROMPT) if k + len(draft) > rows else 0
        found = _chain(slot, work.tokens[:head], held, min(rows, _PROMPT))
        last = Piece(slot)
        for i, token in enumerate(work.tokens[head:]):
            last.add(token, held + head + i, held + head + i, i - 1)
        root = k - head - 1
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            above = root if parent == ROOT else root + 1 + parent
            last.add(token, last.positions[above] + 1, held + k + node, above)
        last.read = [(root + i, i) for i in range(1 + len(draft))] if work.logits else []
        return [*found, last]
    found, seen = [], set[int]()
    *sides, main = [*paths(draft)[1:], paths(draft)[0]]
    for turn, path in enumerate([*sides, main]):
        lead = work.tokens if turn == 0 else ()
        start = held if turn == 0 else held + k
        chain = _chain(slot, (*lead, *(draft.tokens[node] for node in path)), start, rows)
        names = [*range(-len(lead), 0), *path]  # -1 is the root
        for i, name in enumerate(names):
            if work.logits and name >= ROOT and name not in seen:
                seen.add(name)
                chain[i // rows].read.append((i % rows, name + 1))
        found += chain
    return found


def _chain(slot: int, tokens: Sequence[int], start: int, rows: int) -> list[Piece]:
    found = []
    for at in range(0, len(tokens), rows):
        piece = Piece(slot)
        for i, token in enumerate(tokens[at : at + rows]):
            piece.add(token, start + at + i, start + at + i, i - 1)
        found.append(piece)
    return found


class FixedRunner(Runner):
    """Runs works in rounds: a pass takes one piece of each. ``shapes`` are those met so far, by slots and rows."""

    def __init__(self, *parts: Any, strict: bool, compile: bool, say: Callable[[str], None] | None = None) -> None:
        super().__init__(*parts)
        self.rule = RowRule(STRICT_ROWS, STRICT_ROWS) if strict else RowRule()
        self.strict = strict
        self._rows = STRICT_ROWS if strict else ROWS[-1]
        self._compile = compile
        self._say = say
        self.shapes: dict[tuple[int, int, int, int], Shape] = {}
        if strict or self.device.type != "cuda":  # a graph is soon captured again, what is compiled is not
            self.kv.reserve(self.kv.most, self.kv.context)

    @property
    def widths(self) -> tuple[int, ...]:
        """The row counts of one text's ready shapes."""
        ready = (key for key in self.shapes if key[0] == 1 and key[1] == key[2] and key[3] == self.kv.moves)
        return tuple(sorted(rows for _, rows, _, _ in ready))

    def _run(self, works: Sequence[Work], held: Sequence[Held]) -> Scored:
        cut = [
            pieces(work, slot, past, self._rows, chains=self._as_chains(work, past))
            for work, (slot, past) in zip(works, held, strict=True)
        ]
        end = max(past + len(work.tokens) + len(work.draft) for work, (_, past) in zip(works, held, strict=True))
        self.kv.reserve(max(slot for slot, _ in held) + 1, min(end, self.kv.context))
        sizes = [1 + len(work.draft) if work.logits else 0 for work in works]
        firsts = np.cumsum([0, *sizes])
        logits: Logits | None = None
        hidden: NDArray[np.float32] | None = None
        for turn in zip_longest(*cut):
            named = [(i, piece) for i, piece in enumerate(turn) if piece is not None]
            shape = self._shape([piece for _, piece in named])
            rows, seen = shape.run([piece for _, piece in named])
            pairs = [(shape.row(p, row), int(firsts[i]) + which) for i, p in named for row, which in p.read]
            if logits is None:
                logits = np.zeros((int(firsts[-1]), rows.shape[1]), np.float32)
            if pairs:
                here, there = (list(side) for side in zip(*pairs, strict=True))
                logits[there] = as_numpy(rows[here])
                if seen is not None:
                    hidden = np.zeros((len(logits), seen.shape[1]), np.float32) if hidden is None else hidden
                    hidden[there] = seen[here]
        assert logits is not None
        keeps: list[Keep] = [partial(self._keep, *each) for each in zip(works, held, strict=True)]
        return logits, hidden, keeps

    def _as_chains(self, work: Work, past: int) -> bool:
        """Whether branches go one after another: in strict passes, and where side by side they have no room."""
        return self.strict or past + len(work.tokens) + len(work.draft) > self.kv.context

    def _keep(self, work: Work, held: Held, path: Sequence[int]) -> None:
        slot, past = held
        start = past + len(work.tokens)
        if not self._as_chains(work, past):
            if tuple(path) != tuple(range(len(path))):
                self.kv.move(slot, start, [start + node for node in path])
        elif tuple(path) != paths(work.draft)[0][: len(path)]:
            with torch.inference_mode():  # another chain lies there now: once more, in the same shape
                for piece in _chain(slot, [work.draft.tokens[node] for node in path], start, self._rows):
                    self._shape([piece]).run([piece])

    def _shape(self, given: Sequence[Piece]) -> Shape:
        slots, rows, read = self.kv.count, STRICT_ROWS, STRICT_ROWS
        if not self.strict:
            most = max(piece.slot for piece in given) + 1
            slots = min(1 << (most - 1).bit_length(), self.kv.count)
            need = max(len(piece.tokens) for piece in given)
            rows = next((width for width in ROWS if width >= need), 1 << (need - 1).bit_length())
            read = 1 if all(len(piece.read) <= 1 for piece in given) and rows > ROWS[0] else rows
        key = (slots, rows, read, self.kv.moves)
        if key not in self.shapes:
            self.shapes = {k: shape for k, shape in self.shapes.items() if k[3] == self.kv.moves}  # the rest is stale
            if self._compile and self._say:
                self._say(f"compiling passes over {slots} x {rows} rows, once")
            self.shapes[key] = Shape(self, slots, rows, read, compile=self._compile)
        return self.shapes[key]


class Shape:
    """One shape: its input buffers, and how it is run (at once, or as a graph captured at its first pass).

    ``read``: rows of each slot whose logits are computed: all, or, where prompts are read, one.
    """

    def __init__(self, runner: FixedRunner, slots: int, rows: int, read: int, *, compile: bool) -> None:
        device = runner.device
        self._runner = runner
        self._fixed = Fixed(runner.kv, slots, rows, device)
        self._tokens = torch.zeros(slots * rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(slots * rows, dtype=torch.int64, device=device)
        self._read = read
        self._wanted = torch.arange(0, slots * rows, rows // read, device=device)
        self._call: Callable[[], tuple[Any, Any]] = self._forward
        if compile:
            self._call = Graph(self._forward, device) if device.type == "cuda" else _compiled(self._forward)

    def row(self, piece: Piece, row: int) -> int:
        """Which of the rows that `run` gives it is."""
        return piece.slot * self._read + (row if self._read > 1 else 0)

    def run(self, given: Sequence[Piece]) -> tuple[Any, NDArray[np.float32] | None]:
        """Logits ``[slots * read, V]`` on the device, and the hidden rows."""
        fixed, length = self._fixed, self._fixed.length
        count = (fixed.slots, fixed.rows)
        tokens, order = np.zeros(count, np.int64), np.zeros(count, np.int64)
        places = np.full(count, length, np.int64)
        reach = np.broadcast_to(np.arange(length), (fixed.slots, length)).copy()
        hidden = np.ones((*count, length), np.bool_)
        hidden[:, :, 0] = False  # rows that nobody reads see something, since a softmax over nothing is no number
        wanted = np.arange(0, fixed.slots * fixed.rows, fixed.rows // self._read)
        for piece in given:
            _fill(piece, (tokens, order, places), reach, hidden)
            if self._read == 1 and piece.read:
                wanted[piece.slot] = piece.slot * fixed.rows + piece.read[0][0]
        for buffer, values in (
            (self._tokens, tokens.ravel()),
            (self._positions, order.ravel()),
            (self._wanted, wanted),
            (fixed.places, places),
            (fixed.order, order),
            (fixed.reach, reach),
            (fixed.hidden, hidden),
        ):
            buffer.copy_(torch.from_numpy(values))
        try:
            logits, seen = self._call()
        except Exception as error:
            if self._call == self._forward or out_of_memory(error):
                raise
            raise TargetError(f"a compiled pass failed ({one_line(error)}): leave out --compile") from error
        return logits, None if seen is None else as_numpy(seen)

    def _forward(self) -> tuple[Any, Any]:
        runner = self._runner
        logits = runner.port.forward(self._tokens, self._positions, self._wanted, self._fixed)
        return logits, runner.taps.rows(self._wanted)


def _compiled(method: Any) -> Callable[[], Any]:
    """``method`` for `torch.compile`, which keeps only a few results per code object and beyond that runs it as it is:
    every shape gets a copy of the code."""
    code = method.__func__.__code__.replace()
    call: Callable[[], Any] = torch.compile(MethodType(FunctionType(code, globals()), method.__self__), dynamic=False)
    return call


def _fill(piece: Piece, rows: Sequence[Any], reach: Any, hidden: Any) -> None:
    """Write ``piece`` into the buffers of its slot; ``rows`` are tokens, positions and places."""
    s, n = piece.slot, len(piece.tokens)
    for buffer, values in zip(rows, (piece.tokens, piece.positions, piece.places), strict=True):
        buffer[s, :n] = values
    reach[s, piece.places] = piece.positions
    for row, (above, place) in enumerate(zip(piece.above, piece.places, strict=True)):
        if above < 0:
            hidden[s, row, :place] = False
        else:
            hidden[s, row] = hidden[s, above]
        hidden[s, row, place] = False


class Graph:
    """A CUDA graph of ``call`` on ``device``, captured at first use: afterwards a pass is one launch."""

    def __init__(self, call: Callable[[], Any], device: Any) -> None:
        self._call = call
        self._device = device
        self._graph: Any = None
        self._result: Any = None

    def __call__(self) -> Any:
        """What ``call`` returns, in buffers that the next use overwrites."""
        with torch.cuda.device(self._device):  # streams and graphs are those of the current device
            if self._graph is None:
                self._capture()
            self._graph.replay()
        return self._result

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what a first call sets up must not be captured
            for _ in range(2):
                self._call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._result = self._call()
        self._graph = graph  # only once it is whole: a pass that failed is captured anew
