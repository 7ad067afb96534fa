"""As much of vLLM as a proposer sees: a batch whose rows close their gaps, prompts read in parts, drafts checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

VOCABULARY = 32
CONTEXT = 256
MOST = 8

Next = Callable[[Sequence[int]], int]
"""The model: a text's next token."""


class Asked(Protocol):
    """A proposer."""

    def propose(self, *given: Any, **named: Any) -> list[list[int]]: ...


def config(options: Mapping[str, Any] | None = None, *, pipeline: int = 1, most: int = MOST) -> Any:
    """A ``VllmConfig``."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model="nowhere",
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=CONTEXT,
            get_vocab_size=lambda: VOCABULARY,
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=pipeline),
        device_config=SimpleNamespace(device_type="cpu"),
        speculative_config=SimpleNamespace(num_speculative_tokens=most),
        additional_config=None if options is None else {"sooner": options},
    )


class Tensor:
    """As much of one as logits need."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self.shape = rows.shape

    def __getitem__(self, part: slice) -> Tensor:
        return Tensor(self._rows[part])

    def float(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self._rows


@dataclass(eq=False)
class Asking:
    """A request: ``most`` tokens after ``prompt``, of which ``read`` are in the cache."""

    prompt: list[int]
    most: int
    text: list[int] = field(default_factory=list)
    read: int = 0
    draft: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = list(self.prompt)

    @property
    def answer(self) -> list[int]:
        return self.text[len(self.prompt) :]


class Engine:
    """Passes over a batch. ``part``: prompt tokens of a pass; ``cost``: milliseconds of a pass of so many rows;
    ``cut``: what becomes of drafts before they are scored, as grammars and full batches cut them."""

    def __init__(
        self,
        model: Next,
        *,
        part: int = 16,
        cost: Callable[[int], float] = float,
        cut: Callable[[list[int]], list[int]] = list,
    ) -> None:
        self.model = model
        self.running: list[Asking] = []
        self.rows: list[int] = []
        self.time = 0.0
        self.proposer: Asked | None = None
        self._logits = np.zeros((0, VOCABULARY), np.float32)
        self._part = part
        self._cost = cost
        self._cut = cut

    def compute_logits(self, hidden: Any = None) -> Tensor:
        """Those of the pass just over."""
        return Tensor(self._logits)

    def clock(self) -> float:
        """Seconds that passes took."""
        return self.time

    def answer(self, *requests: Asking) -> list[list[int]]:
        """All of ``requests``, side by side."""
        self.running += requests
        while self.running:
            self.step()
        return [request.answer[: request.most] for request in requests]

    def step(self) -> None:
        """One pass, and the question after it."""
        assert self.proposer is not None
        self._logits = np.array([row for request in self.running for row in self._scores(request)], np.float32)
        reading = [min(self._part, len(r.prompt) - r.read) for r in self.running]
        self.rows.append(sum(n or 1 + len(r.draft) for n, r in zip(reading, self.running, strict=True)))
        self.time += self._cost(self.rows[-1]) / 1e3
        sampled = [self._pass(request) for request in self.running]
        counts = np.array([len(request.text) for request in self.running], np.int32)
        held = np.zeros((len(self.running), CONTEXT), np.int32)
        for row, request in zip(held, self.running, strict=True):
            row[: len(request.text)] = request.text
        self.compute_logits()
        drafts = self.proposer.propose(sampled, counts, held, slot_mappings=None)
        assert len(drafts) == len(self.running)
        for request, tokens, draft in zip(self.running, sampled, drafts, strict=True):
            assert len(draft) <= MOST
            assert all(type(token) is int and 0 <= token < VOCABULARY for token in draft)
            assert tokens or not draft
            assert len(request.text) + len(draft) < CONTEXT
            request.draft = self._cut(draft)
        for request in [one for one in self.running if len(one.answer) >= one.most]:
            self.leave(request)

    def leave(self, request: Asking) -> None:
        """The last row takes the place of one that leaves."""
        at = self.running.index(request)
        last = self.running.pop()
        if last is not request:
            self.running[at] = last

    def _scores(self, request: Asking) -> list[list[float]]:
        rows = []
        for i in range(1 + len(request.draft)):
            likely = self.model([*request.text, *request.draft[:i]])
            rows.append([9.0 if token == likely else 0.0 for token in range(VOCABULARY)])
        return rows

    def _pass(self, request: Asking) -> list[int]:
        if request.read < len(request.prompt):
            request.read = min(request.read + self._part, len(request.prompt))
            if request.read < len(request.prompt):
                return []
        emitted: list[int] = []
        for guess in [*request.draft, None]:
            token = self.model(request.text)
            request.text.append(token)
            emitted.append(token)
            if token != guess:
                break
        return emitted
