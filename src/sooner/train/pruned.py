"""The pruned draft in torch: a few of the target's own decoder layers between its embedding and its LM head.

Knows the arithmetic of llama layers. Does not know files, schedules or where the layers are put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sooner.targets.openvino.weights import LayerWeights, SharedWeights
from sooner.train.student import Batch, Student, Unrolled

__all__ = ["DecoderLayer", "PrunedDraft", "PrunedShape", "causal"]


@dataclass(frozen=True, slots=True)
class PrunedShape:
    """``kept``: the target's layers, counted from 0; ``heads`` and ``kv_heads`` of ``head_dim``."""

    kept: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    eps: float


class PrunedDraft(Student):
    """Reads a text as the target does and is judged where the target's rows are known."""

    def __init__(
        self, shape: PrunedShape, vocabulary: Tensor, shared: SharedWeights, layers: Sequence[LayerWeights]
    ) -> None:
        super().__init__(shape.eps, vocabulary, shared)
        self.shape = shape
        self.layers = nn.ModuleList(DecoderLayer(weights, shape) for weights in layers)
        with torch.no_grad():
            self.norm.weight.copy_(torch.from_numpy(shared.norm))

    def unroll(self, batch: Batch, steps: int, chance: torch.Generator | None = None) -> list[Unrolled]:
        """Guesses from the text alone: its rows at every place, of which later steps are those further on. Training
        needs the first step only."""
        n = batch.ids.shape[1]
        rows = self.rows(torch.cat([batch.before, batch.tokens[:, :n]], 1))[:, -n:]
        wanted = 1 if self.training else min(steps, n)
        return [self.score(rows[:, i:], batch.ids[:, i:], batch.chances[:, i:]) for i in range(wanted)]

    def rows(self, tokens: Tensor) -> Tensor:
        """``[B, n, H]``: the rows that leave the last layer for ``tokens`` ``[B, n]``, in which -1 is padding."""
        angles, mask = causal(tokens, self.shape)
        x = self.embedding[tokens.clamp(min=0)]  # stays float32 under autocast
        for layer in self.layers:
            x = layer(x, angles, mask)
        return x

    def exported(self) -> list[LayerWeights]:
        """The layers as they are now."""
        layers: Any = self.layers
        return [layer.exported() for layer in layers]


def causal(tokens: Tensor, shape: PrunedShape) -> tuple[Tensor, Tensor]:
    """What layers need to know of ``tokens`` ``[B, n]``, where -1 is padding: the rotary angles ``[n, head_dim]`` and
    who may see whom, ``[B, 1, n, n]``."""
    n = tokens.shape[1]
    mask = (tokens >= 0)[:, None, None, :] & torch.ones(n, n, dtype=torch.bool).tril()
    mask = mask | torch.eye(n, dtype=torch.bool)  # padding sees itself, since a row has to see something
    turns = shape.rope_theta ** (-torch.arange(shape.head_dim // 2) / (shape.head_dim // 2))
    return torch.arange(n)[:, None] * turns.repeat(2), mask


class DecoderLayer(nn.Module):
    """Attention and a gated MLP, each behind a norm, of ``weights``; biases are not learned."""

    def __init__(self, weights: LayerWeights, shape: PrunedShape) -> None:
        super().__init__()
        self._shape = shape
        for field in fields(weights):
            value = getattr(weights, field.name)
            tensor = None if value is None else torch.from_numpy(value.copy())
            if field.name.endswith("_bias"):
                self.register_buffer(field.name, tensor)
            else:
                self.register_parameter(field.name, nn.Parameter(tensor))

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        """``x`` ``[B, n, H]`` one layer on, with what `causal` says of its tokens."""
        cos, sin = angles.cos(), angles.sin()
        inner = functional.rms_norm(x, x.shape[-1:], self.attention_norm, self._shape.eps)
        q = _rotated(self._heads(functional.linear(inner, self.q, self.q_bias)), cos, sin)
        k = _rotated(self._heads(functional.linear(inner, self.k, self.k_bias)), cos, sin)
        v = self._heads(functional.linear(inner, self.v, self.v_bias))
        mixed = functional.scaled_dot_product_attention(q, k, v, mask)
        x = x + functional.linear(mixed.transpose(1, 2).flatten(2), self.o)
        inner = functional.rms_norm(x, x.shape[-1:], self.mlp_norm, self._shape.eps)
        gated = functional.silu(functional.linear(inner, self.gate)) * functional.linear(inner, self.up)
        return x + functional.linear(gated, self.down)

    def exported(self) -> LayerWeights:
        """The weights as they are now."""
        values = {field.name: getattr(self, field.name) for field in fields(LayerWeights)}
        arrays: dict[str, Any] = {
            name: None if value is None else value.detach().float().numpy().copy() for name, value in values.items()
        }
        return LayerWeights(**arrays)

    def _heads(self, x: Tensor) -> Tensor:
        x = x.unflatten(-1, (-1, self._shape.head_dim)).transpose(1, 2)
        return x.repeat_interleave(self._shape.heads // x.shape[1], dim=1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-b, a], dim=-1) * sin.to(x.dtype)
