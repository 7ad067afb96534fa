"""What a fit works on: a model that guesses the target's next tokens over a reduced vocabulary, and its loss.

Knows batches of passages, the target's embedding and LM head, and distillation. Does not know the layers between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sooner.targets.openvino.weights import SharedWeights

__all__ = ["Batch", "Student", "Unrolled"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Passages side by side, padded at their ends: ``hidden`` ``[B, n, taps * H]``, ``tokens`` ``[B, n + 1]``, ``ids``
    and ``chances`` ``[B, n, width]`` (ids of the draft vocabulary, chance 0 for others, -1 where padded). ``before``
    ``[B, m]``: the text before ``tokens``, padded with -1 at its start."""

    hidden: Tensor
    tokens: Tensor
    ids: Tensor
    chances: Tensor
    before: Tensor


@dataclass(frozen=True, slots=True)
class Unrolled:
    """One unrolled step at its places: ``loss`` (mean), ``at`` ``[places, 2]`` (passage and base row) and, outside
    training, whether the first guess, one of the first three, was the target's likeliest token, ``[places]``."""

    loss: Tensor
    at: Tensor
    top1: Tensor
    top3: Tensor


class Student(nn.Module):
    """``embedding`` and ``lm_head`` are the target's, frozen; ``vocabulary`` are the ids that guesses are among;
    ``shape``: what is needed to make it anew, a dataclass."""

    shape: Any

    def __init__(self, eps: float, vocabulary: Tensor, shared: SharedWeights) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shared.embedding.shape[1], eps=eps)
        self.register_buffer("vocabulary", vocabulary.long(), persistent=True)
        self.register_buffer("embedding", torch.from_numpy(shared.embedding), persistent=False)
        rows = torch.from_numpy(shared.lm_head)[vocabulary.long()]
        self.register_buffer("lm_head", rows.bfloat16(), persistent=False)

    def unroll(self, batch: Batch, steps: int, chance: torch.Generator | None = None) -> list[Unrolled]:
        """``steps`` guesses in a row at every place. In training ``chance`` chooses places where only some count."""
        raise NotImplementedError

    def score(
        self, rows: Tensor, ids: Tensor, chances: Tensor, *, share: float = 1.0, chance: torch.Generator | None = None
    ) -> Unrolled:
        """Rows ``[B, n, H]`` against the laws ``ids`` and ``chances`` ``[B, n, width]`` of what they guess. In training
        at a ``share`` of the places."""
        at = (chances[..., 0] >= 0).nonzero()  # padding is marked by -1
        if self.training and share < 1.0:
            at = at[torch.rand(len(at), generator=chance) < share]
        where = at[:, 0], at[:, 1]
        ids, p = ids[where], chances[where]
        rows = self.norm(rows[where])
        if self.training:
            loss = _SoftLoss.apply(rows, self.lm_head, ids, p)
            return Unrolled(loss, at, at.new_zeros(0), at.new_zeros(0))
        logits = functional.linear(rows.to(self.lm_head.dtype), self.lm_head).float()
        loss = (p.sum(1) * logits.logsumexp(1) - (p * logits.gather(1, ids)).sum(1)).mean()
        hit = (logits.topk(3, dim=1).indices == ids[:, :1]) & (p[:, :1] > 0)
        return Unrolled(loss, at, hit[:, 0], hit.any(1))


class _SoftLoss(torch.autograd.Function):
    """Mean cross-entropy of ``rows @ lm_head.T`` against sparse chances; its gradient is made at once, in place,
    because the ``[N, V]`` logits are most of the memory traffic of training."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, lm_head: Tensor, ids: Tensor, chances: Tensor) -> Tensor:
        logits = functional.linear(rows.to(lm_head.dtype), lm_head).float()
        wanted = (chances * logits.gather(1, ids)).sum(1)
        most = logits.amax(1, keepdim=True)
        total = logits.sub_(most).exp_().sum(1, keepdim=True)
        mass = chances.sum(1, keepdim=True)
        loss = (mass * (most + total.log())).squeeze(1) - wanted
        logits.mul_(mass / total).scatter_add_(1, ids, -chances)
        ctx.save_for_backward((logits.to(lm_head.dtype) @ lm_head).float() / len(rows))
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None, None
