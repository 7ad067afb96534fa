"""What a finished drafter is worth: it runs as it will run, over texts that it was not trained on.

Knows acceptance, milliseconds and the target's cost curve. Does not know how the drafter was made.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sooner import tree
from sooner.control.cost import CostCurve
from sooner.draft.head import HeadRunner
from sooner.protocols import Target
from sooner.train.rows import Passage
from sooner.types import Work

__all__ = ["Judgement", "judge_draft", "judge_head"]


_CHUNK = 128
"""Most rows scored in one pass."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """``top1``, ``top3``: by drafted position, how often the first (one of the first three) guesses is the target's
    likeliest token, all before being right. ``guess_ms``: one guess; ``plain_ms``: a plain step of the
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


def judge_draft(
    draft: Target, passages: Iterable[Passage], own: CostCurve, curve: CostCurve, *, steps: int = 3
) -> Judgement:
    """Let ``draft``, whose passes cost ``own``, read ``passages``; a guess is one pass of it with one more token."""
    tried, first, three = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    for passage in passages:
        hits = _read(draft, passage)
        n = len(hits)
        follows = passage.tokens[1 : n + 1] == passage.ids[:n, 0]
        reached = np.ones(n, np.bool_)
        for step in range(min(steps, n)):
            tried[step] += reached.sum()
            first[step] += (reached & hits[step:, 0]).sum()
            three[step] += (reached & hits[step:].any(axis=1)).sum()
            # Beyond a wrong guess, or where the text itself went elsewhere, there is nothing to compare with.
            reached = (reached & hits[step:, 0] & follows[step:])[:-1]
    top1, top3 = (tuple((hits / np.maximum(tried, 1)).tolist()) for hits in (first, three))
    depth, speedup = _best(top1, own.ms[0], curve)
    return Judgement(int(tried[0]), top1, top3, own.ms[0], curve.ms[0], depth, speedup)


def _read(draft: Target, passage: Passage) -> NDArray[np.bool_]:
    """``[n, 3]``: whether the first, second, third guess at each place is the target's likeliest token."""
    known = tuple(int(token) for token in passage.before[max(0, len(passage.before) - draft.context // 2) :])
    tokens = tuple(int(token) for token in passage.tokens[:-1])[: draft.context - len(known)]
    session, parts = draft.open(salt="judge"), []
    try:
        for chunk in (known[i : i + _CHUNK] for i in range(0, len(known), _CHUNK)):
            draft.score([Work(session, chunk, logits=False)])
        for chunk in (tokens[i : i + _CHUNK] for i in range(0, len(tokens), _CHUNK)):
            nodes = tree.chain(chunk[1:], 1.0, "text")
            (rows,) = draft.score([Work(session, chunk[:1], nodes)])
            session.settle(range(len(nodes)))
            best = np.argpartition(rows.logits, -3, axis=1)[:, -3:]
            order = np.argsort(-np.take_along_axis(rows.logits, best, axis=1), axis=1, kind="stable")
            parts.append(np.take_along_axis(best, order, axis=1))
    finally:
        session.close()
    hits: NDArray[np.bool_] = np.concatenate(parts) == passage.ids[: len(tokens), :1]
    return hits


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
