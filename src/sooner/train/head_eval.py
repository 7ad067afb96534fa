"""What a finished head is worth: it runs as it will run, over texts that it was not trained on.

Knows acceptance, milliseconds and the target's cost curve. Does not know how the head was made.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sooner.control.cost import CostCurve
from sooner.draft.head import HeadRunner
from sooner.train.rows import Passage

__all__ = ["Judgement", "judge_head"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """``top1``, ``top3``: by drafted position, how often the first (one of the first three) guesses is the target's
    likeliest token, all before being right. ``guess_ms``: one guess of the head; ``plain_ms``: a plain step of the
    target. ``depth``: the chain that pays most, 0 if none does, and ``speedup``: what it predicts at temperature 0."""

    places: int
    top1: tuple[float, ...]
    top3: tuple[float, ...]
    guess_ms: float
    plain_ms: float
    depth: int
    speedup: float


def judge_head(head: HeadRunner, passages: Iterable[Passage], curve: CostCurve, *, steps: int = 3) -> Judgement:
    """Run ``head`` along ``passages`` of at least two rows, at every place ``steps`` guesses deep."""
    tried, first, three = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    times: list[float] = []
    for passage in passages:
        session = head.open()
        rows = (passage.hidden.astype(np.uint32) << 16).view(np.float32)
        for at in range(len(passage.ids) - 1):
            begun = time.perf_counter()
            (guess,) = head.start([session], [rows[at : at + 1]], [[int(passage.tokens[at + 1])]])
            times.append(time.perf_counter() - begun)
            for step in range(min(steps, len(passage.ids) - at - 1)):
                likeliest = int(passage.ids[at + 1 + step, 0])
                tried[step] += 1
                three[step] += likeliest in guess.ids[:3]
                # Beyond a wrong guess, or where the text itself went elsewhere, there is nothing to compare with.
                if guess.ids[0] != likeliest:
                    break
                first[step] += 1
                follows = int(passage.tokens[at + 2 + step])
                if likeliest != follows or step + 1 == steps:
                    break
                (guess,) = head.extend([session], [follows])
    top1, top3 = (tuple((hits / np.maximum(tried, 1)).tolist()) for hits in (first, three))
    guess_ms = 1e3 * statistics.median(times) if times else 0.0
    depth, speedup = _best(top1, guess_ms, curve)
    return Judgement(int(tried[0]), top1, top3, guess_ms, curve.ms[0], depth, speedup)


def _best(top1: tuple[float, ...], guess_ms: float, curve: CostCurve) -> tuple[int, float]:
    """The chain length with the most expected tokens per second against plain steps (2211.17192, section 3.3)."""
    best, depth = 1.0, 0
    reach, expected = 1.0, 1.0
    for k, chance in enumerate(top1, 1):
        reach *= chance
        expected += reach
        ms = float(curve(np.array([float(k + 1)]), 1, np.zeros(1))[0]) + k * guess_ms
        if expected * curve.ms[0] / ms > best:
            best, depth = expected * curve.ms[0] / ms, k
    return depth, best
