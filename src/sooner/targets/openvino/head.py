"""A trained head beside its target: a small graph that guesses the next token, then goes on from its own output.

Knows the head's arithmetic (EAGLE-3, 2503.01840), its cache of past keys and the tables that it shares with the target.
Does not know drafts, trees or what the target made of a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sooner.errors import TargetError
from sooner.targets.openvino.graph import last_line
from sooner.targets.openvino.head_graph import INPUTS, head_bytes, head_graph

__all__ = ["Guesses", "HeadLike", "HeadSession", "OpenVINOHead"]

_SPARE = 16
"""Slots of a session's cache beyond the window, for what is drafted and may be dropped."""

_WIDTHS = (1, 2, 4, 8, 16)
"""Rows of one session in a pass are padded to one of these: every new shape costs an inference of shapes."""

_FAR = np.float32(-1e9)

Array = NDArray[np.float32]


class ShapeLike(Protocol):
    """Sizes of a head, read-only; `sooner.store.head_file.HeadShape` has them."""

    @property
    def hidden(self) -> int:
        """H, of the target too."""
        ...

    @property
    def taps(self) -> int:
        """Rows of the target that are read side by side."""
        ...

    @property
    def heads(self) -> int:
        """Of its attention."""
        ...

    @property
    def kv_heads(self) -> int:
        """Key-value heads, each shared by as many query heads."""
        ...

    @property
    def head_dim(self) -> int:
        """d, even."""
        ...

    @property
    def rope_theta(self) -> float:
        """The base of its rotary positions."""
        ...

    @property
    def eps(self) -> float:
        """Of its norms."""
        ...

    @property
    def window(self) -> int:
        """Positions its attention reaches back."""
        ...


class HeadLike(Protocol):
    """What a head runs from; `sooner.store.head_file.HeadFile` has it."""

    @property
    def shape(self) -> ShapeLike:
        """Its sizes."""
        ...

    @property
    def vocabulary(self) -> NDArray[np.int64]:
        """The target's ids that it can name, ``[n]``."""
        ...

    @property
    def weights(self) -> Mapping[str, Array]:
        """By the names of the file; without ``lm_head.weight`` the target's is used."""
        ...

    @property
    def norm_before_residual(self) -> bool:
        """Whether the stream starts from the normed state."""
        ...


@dataclass(frozen=True, slots=True)
class Guesses:
    """The likeliest next tokens, best first: ``ids`` of the target and ``chances``."""

    ids: tuple[int, ...]
    chances: tuple[float, ...]


@dataclass(slots=True, eq=False)
class HeadSession:
    """One sequence's past in the head: keys and values of the last positions in a ring, and the newest state.

    ``length``: positions fed with rows of the target, ever; ``drafted``: further ones, fed with the head's own state.
    """

    keys: Array
    values: Array
    state: Array
    length: int = 0
    drafted: int = 0
    mask: Array = field(default_factory=lambda: np.zeros(0, np.float32))


class OpenVINOHead:
    """Runs a head on the CPU, several sequences in one pass, in int8 beside the target's own embedding.

    ``xml``: the target's IR, whose embedding (and LM head, where the file has none) is used as it lies there.
    ``memory``: about the bytes that it takes. The first pass is run here, since that one also packs the weights.
    Raises `TargetError`, `ModelError`.
    """

    def __init__(self, head: HeadLike, xml: Path, *, threads: int | None = None, width: int = 8) -> None:
        import openvino as ov

        shape = head.shape
        self.shape = shape
        self.slots = shape.window + _SPARE
        self._vocabulary = head.vocabulary
        core = ov.Core()
        config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        if threads is not None:
            config["INFERENCE_NUM_THREADS"] = threads
        graph = head_graph(core, head, xml, slots=self.slots, width=min(width, len(head.vocabulary)))
        self.memory = head_bytes(graph)
        self._request = core.compile_model(graph, "CPU", config).create_infer_request()
        half = shape.head_dim // 2
        self._turns = (shape.rope_theta ** (-np.arange(half) / half)).astype(np.float64)
        self.start([self.open()], [np.zeros((1, shape.taps * shape.hidden), np.float32)], [[0]])

    def open(self) -> HeadSession:
        """A session that has seen nothing."""
        size = (self.shape.kv_heads, self.slots, self.shape.head_dim)
        zeros = np.zeros(self.shape.hidden, np.float32)
        return HeadSession(np.zeros(size, np.float32), np.zeros(size, np.float32), zeros)

    def start(
        self, sessions: Sequence[HeadSession], rows: Sequence[Array], tokens: Sequence[Sequence[int]]
    ) -> list[Guesses]:
        """Feed each session the target's ``rows`` ``[m, taps * H]`` with the tokens ``[m]`` that followed them, m >= 1,
        and guess what comes next. What a session drafted since the last time is dropped."""
        for session in sessions:
            session.drafted = 0
        most = _WIDTHS[-1]
        while max(map(len, tokens)) > most:  # a long backlog, as after a while without drafting
            first = [(s, r[:-most], t[:-most]) for s, r, t in zip(sessions, rows, tokens, strict=True) if len(t) > most]
            rows, tokens = [r[-most:] for r in rows], [t[-most:] for t in tokens]
            for session, old, known in first:
                for i in range(0, len(known), most):
                    self._pass([session], [old[i : i + most]], [known[i : i + most]], drafting=False)
        return self._pass(sessions, rows, tokens, drafting=False)

    def extend(self, sessions: Sequence[HeadSession], tokens: Sequence[int]) -> list[Guesses]:
        """Go on from each session's own state as if ``tokens`` came next."""
        return self._pass(sessions, [None] * len(sessions), [[token] for token in tokens], drafting=True)

    def _pass(
        self,
        sessions: Sequence[HeadSession],
        rows: Sequence[Array | None],
        tokens: Sequence[Sequence[int]],
        *,
        drafting: bool,
    ) -> list[Guesses]:
        b, counts = len(sessions), [len(t) for t in tokens]
        t = next(width for width in _WIDTHS if width >= max(counts))
        shape = self.shape
        fed: dict[str, NDArray[Any]] = {
            "rows": np.zeros((b, t, shape.taps * shape.hidden), np.float32),
            "state": np.zeros((b, t, shape.hidden), np.float32),
            "ids": np.zeros((b, t), np.int64),
            "mask": np.full((b, 1, t, self.slots + t), _FAR, np.float32),
            "last": np.array([i * t + n - 1 for i, n in enumerate(counts)], np.int64),
        }
        positions = np.zeros((b, t))
        for i, session in enumerate(sessions):
            n = counts[i]
            own = rows[i]
            if own is None:
                fed["state"][i, 0] = session.state
            else:
                fed["rows"][i, :n] = own
            fed["ids"][i, :n] = tokens[i]
            start = session.length + session.drafted
            positions[i] = np.arange(start, start + t)
            self._see(fed["mask"][i, 0], session, drafting=drafting)
        angles = positions[:, None, :, None] * self._turns
        fed["cos"], fed["sin"] = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        fed["keys"] = sessions[0].keys[None] if b == 1 else np.stack([s.keys for s in sessions])
        fed["values"] = sessions[0].values[None] if b == 1 else np.stack([s.values for s in sessions])
        try:
            out = self._request.infer([fed[name] for name in INPUTS], share_inputs=True, share_outputs=True)
        except RuntimeError as error:
            raise TargetError(f"the head failed in OpenVINO: {last_line(error)}") from error
        chances, ids, states, keys, values = (out[i] for i in range(5))
        for i, session in enumerate(sessions):
            self._keep(session, keys[i], values[i], counts[i], drafting)
            session.state = states[i].copy()
        named = self._vocabulary[ids]
        return [Guesses(tuple(row), tuple(p)) for row, p in zip(named.tolist(), chances.tolist(), strict=True)]

    def _see(self, mask: Array, session: HeadSession, *, drafting: bool) -> None:
        """Open ``mask`` ``[t, slots + t]`` to what was seen in training: the window up to the newest row of the target,
        its own position included, and all that was drafted since."""
        window, end = self.shape.window, session.length + session.drafted
        if drafting:
            mask[:, np.arange(max(0, session.length - window), end) % self.slots] = 0.0
            mask[:, self.slots :] = 0.0
            return
        past, rows = np.arange(max(0, end - window + 1), end), np.arange(len(mask))[:, None]
        mask[:, past % self.slots] = np.where(end + rows - past < window, 0.0, _FAR)
        apart = rows - np.arange(len(mask))
        mask[:, self.slots :] = np.where((apart >= 0) & (apart < window), 0.0, _FAR)

    def _keep(self, session: HeadSession, keys: Array, values: Array, n: int, drafting: bool) -> None:
        at = (session.length + session.drafted + np.arange(n)) % self.slots
        session.keys[:, at] = keys[:, :n]
        session.values[:, at] = values[:, :n]
        if drafting:
            session.drafted += n
        else:
            session.length += n
