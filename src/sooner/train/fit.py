"""Fitting a drafter to collected rows: seeded, checkpointed, resumable after a kill, judged by acceptance.

Knows batches, the optimiser and checkpoints. Does not know how rows come about or how what is fitted drafts.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sooner.errors import InvalidRequest
from sooner.train.rows import Passage, read_rows, shards
from sooner.train.student import Batch, Student, Unrolled

__all__ = ["Acceptance", "Fit", "Plan", "count_tokens", "measure_scale"]

_TOGETHER = 4
"""Files of rows whose passages are shuffled together."""

_BEFORE = 256
"""Most tokens before a passage that a student reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a student is fitted; a checkpoint goes on only under an equal plan.

    ``steps``: unrolled guesses per place; later ones weigh ``decay`` each. ``sharpen``: the target's law is learned at
    this temperature. ``rate``: of the optimisers, after ``warmup`` batches. ``places``: rows in a batch, about.
    ``average``: of the weights that are judged and exported.
    """

    steps: int = 3
    decay: float = 0.8
    sharpen: float = 0.7
    rate: float = 2e-3
    warmup: int = 100
    places: int = 1024
    average: float = 0.998
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Held-out figures by position drafted (the first is 1): how often the first guess, or one of the first three, is
    the target's likeliest token where all before were accepted. ``loss``: the mean of the first position."""

    top1: tuple[float, ...]
    top3: tuple[float, ...]
    loss: float

    def __str__(self) -> str:
        figures = "/".join(f"{value:.3f}" for value in self.top1), "/".join(f"{value:.3f}" for value in self.top3)
        return f"top-1 {figures[0]}, top-3 {figures[1]}, loss {self.loss:.3f}"


class Fit:
    """A student on its way: parameters, their running average, the optimisers, and the place in the data.

    Matrices are moved by Muon (Jordan et al. 2024, steps of AdamW's size as in arXiv 2502.16982), which needs half the
    positions that AdamW needs here; the norms' vectors, which it cannot move, by AdamW."""

    def __init__(self, student: Student, plan: Plan) -> None:
        self.student = student
        self.average = copy.deepcopy(student).requires_grad_(False).eval()
        self.plan = plan
        matrices = [p for p in student.parameters() if p.ndim == 2]
        others = [p for p in student.parameters() if p.ndim != 2]
        self.optimisers = (
            torch.optim.Muon(matrices, plan.rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, plan.rate, betas=(0.9, 0.98), weight_decay=0.0),
        )
        self.batches = 0
        self.seen = 0
        self.epoch = 0
        self.order: list[str] = []
        self.within = 0
        """Batches done of the files that the order begins with."""
        v, vocabulary = len(student.get_buffer("embedding")), student.get_buffer("vocabulary")
        self._draft_id = torch.full((v,), -1)
        self._draft_id[vocabulary] = torch.arange(len(vocabulary))

    def run(self, folders: Sequence[Path], *, rate: Callable[[], float] | None = None) -> Iterator[float]:
        """Train on the files in ``folders``, over and over; yields the loss after each batch, when it is safe to save.
        ``rate`` gives the learning rate of the moment (default: the plan's)."""
        while True:
            if not self.order:
                self.order = self._shuffled(folders)
                self.within = 0
            group = self.order[:_TOGETHER]
            passages = [passage for name in group for passage in read_rows(Path(name))]
            rng = random.Random(f"{self.plan.seed} {self.epoch} {group[0]}")
            for batch in list(self._batches(passages, rng))[self.within :]:
                loss = self._learn(self.batch(batch), self.plan.rate if rate is None else rate())
                self.within += 1
                yield loss
            self.order = self.order[_TOGETHER:]
            self.within = 0
            self.epoch += not self.order

    def batch(self, passages: Sequence[Passage]) -> Batch:
        """Passages as padded tensors, their successors as ids of the draft vocabulary under the sharpened law."""
        n = max(len(passage.ids) for passage in passages)
        width = passages[0].ids.shape[1]
        hidden = torch.zeros(len(passages), n, passages[0].hidden.shape[1])
        tokens = torch.zeros(len(passages), n + 1, dtype=torch.long)
        ids = torch.zeros(len(passages), n, width, dtype=torch.long)
        chances = torch.full((len(passages), n, width), -1.0)
        before = torch.full((len(passages), max(len(passage.before[-_BEFORE:]) for passage in passages)), -1)
        for i, passage in enumerate(passages):
            m = len(passage.ids)
            rows = (passage.hidden.astype(np.uint32) << 16).view(np.float32)
            hidden[i, :m] = torch.from_numpy(rows)
            tokens[i, : m + 1] = torch.from_numpy(passage.tokens.astype(np.int64))
            if known := len(passage.before[-_BEFORE:]):
                before[i, -known:] = torch.from_numpy(passage.before[-_BEFORE:].astype(np.int64))
            p = torch.from_numpy(passage.chances.astype(np.float32)) ** (1.0 / self.plan.sharpen)
            found = self._draft_id[torch.from_numpy(passage.ids.astype(np.int64))]
            chances[i, :m] = torch.where(found >= 0, p / p.sum(1, keepdim=True), torch.zeros(()))
            ids[i, :m] = found.clamp(min=0)
        return Batch(hidden, tokens, ids, chances, before)

    def judge(self, passages: Iterable[Passage]) -> Acceptance:
        """Acceptance of the averaged weights on held-out passages."""
        hits = [np.zeros(3) for _ in range(self.plan.steps)]  # tried, first right, one of three right
        loss = places = 0.0
        for group in self._batches(list(passages), random.Random(0)):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                steps = self.average.unroll(self.batch(group), self.plan.steps)
            loss, places = loss + float(steps[0].loss) * len(steps[0].at), places + len(steps[0].at)
            _count(steps, hits)
        top1, top3 = (tuple(float(h[i] / max(h[0], 1)) for h in hits) for i in (1, 2))
        return Acceptance(top1, top3, loss / max(places, 1))

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all. Raises `OSError`."""
        state = {
            "plan": asdict(self.plan),
            "kind": type(self.student).__name__,
            "shape": asdict(self.student.shape),
            "student": self.student.state_dict(),
            "average": self.average.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "place": (self.batches, self.seen, self.epoch, self.order, self.within),
        }
        written = io.BytesIO()  # torch's own writer reports a full disk as something else than an OSError
        torch.save(state, written)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            unfinished.write_bytes(written.getbuffer())
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    @staticmethod
    def sizes(path: Path, kind: type[Student]) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
        """Shape and parameters of the student in a checkpoint. Raises `InvalidRequest` if there is none of ``kind``."""
        state = _read(path)
        if state["kind"] != kind.__name__:
            raise InvalidRequest(f"{path} is of another kind of drafter: give another --out")
        return state["shape"], state["student"]

    @classmethod
    def load(cls, path: Path, student: Student) -> Fit:
        """Go on from a checkpoint with a student of its sizes. Raises `InvalidRequest`."""
        state = _read(path)
        fit = cls(student, Plan(**state["plan"]))
        fit.student.load_state_dict(state["student"])
        fit.average.load_state_dict(state["average"])
        for optimiser, known in zip(fit.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(known)
        fit.batches, fit.seen, fit.epoch, order, fit.within = state["place"]
        fit.order = list(order)
        return fit

    def _learn(self, batch: Batch, rate: float) -> float:
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, (self.batches + 1) / self.plan.warmup)
        chance = torch.Generator().manual_seed(1_000_003 * self.plan.seed + self.batches)
        with torch.autocast("cpu", torch.bfloat16):
            steps = self.student.unroll(batch, self.plan.steps, chance)
        weights = [self.plan.decay**i for i in range(len(steps))]
        loss = sum((w * step.loss for w, step in zip(weights, steps, strict=True)), torch.zeros(())) / sum(weights)
        self.student.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        self.batches += 1
        self.seen += len(steps[0].at)
        keep = min(self.plan.average, self.batches / (self.batches + 10))
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), self.student.parameters(), strict=True):
                mean.lerp_(now, 1.0 - keep)
        return float(steps[0].loss.detach())

    def _shuffled(self, folders: Sequence[Path]) -> list[str]:
        names = [str(path) for folder in folders for path in shards(folder)]
        random.Random(f"{self.plan.seed} {self.epoch}").shuffle(names)
        return names

    def _batches(self, passages: list[Passage], rng: random.Random) -> Iterator[list[Passage]]:
        """Passages of like length together, in random order."""
        usable = [passage for passage in passages if len(passage.ids) > 1]
        rng.shuffle(usable)
        usable.sort(key=lambda passage: len(passage.ids) // 8)
        groups: list[list[Passage]] = [[]]
        for passage in usable:
            if groups[-1] and (len(groups[-1]) + 1) * len(passage.ids) > self.plan.places:
                groups.append([])
            groups[-1].append(passage)
        rng.shuffle(groups)
        return (group for group in groups if group)


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        state["plan"], state["kind"], state["shape"], state["student"], state["optimisers"], state["place"]
    except (OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise InvalidRequest(f"{path} is no whole checkpoint: remove it to fit anew") from error
    return state


def _count(steps: Sequence[Unrolled], hits: list[np.ndarray[Any, np.dtype[np.float64]]]) -> None:
    """Add up hits per position over the places where all earlier guesses were right."""
    right: set[tuple[int, int]] | None = None
    for step, sums in zip(steps, hits, strict=False):
        at = [(int(a), int(b)) for a, b in step.at.tolist()]
        now = set()
        for place, first, three in zip(at, step.top1.tolist(), step.top3.tolist(), strict=True):
            if right is not None and place not in right:
                continue
            sums[:] += (1, first, three)
            if first:
                now.add(place)
        right = now


def count_tokens(passages: Iterable[Passage], size: int) -> Tensor:
    """How often each of ``size`` ids was written, the likely alternatives counted by their chance."""
    counts = np.zeros(size)
    for passage in passages:
        np.add.at(counts, passage.ids, passage.chances.astype(np.float64))
        np.add.at(counts, passage.tokens[1:], 1.0)
    return torch.from_numpy(counts)


def measure_scale(passages: Iterable[Passage]) -> Tensor:
    """The root mean square of every tapped component, ``[taps * H]``."""
    total: Any = 0.0
    rows = 0
    for passage in passages:
        hidden = (passage.hidden.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        total, rows = total + (hidden**2).sum(0), rows + len(hidden)
    return torch.from_numpy(np.sqrt(total / max(rows, 1)) + 1e-6)
