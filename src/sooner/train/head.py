"""The trained head in torch: one decoder layer over a token and the target's hidden rows, unrolled on its own output.

Knows the arithmetic of EAGLE-3 (2503.01840). Does not know files, schedules or the target that it serves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sooner.store.head_file import HeadShape
from sooner.targets.openvino.weights import SharedWeights
from sooner.train.student import Batch, Student, Unrolled

__all__ = ["Head"]

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")

_LATER = 0.5
"""Share of the places at which later guesses are trained: most of the cost is there, and they matter less."""


class Head(Student):
    """``tokens[i + 1]`` and row i guess what follows; then its own output and the next token guess on.

    Rows are divided by ``scale`` before ``fc`` (their spread; folded into ``fc`` on export), so that one learning rate
    fits all.
    """

    def __init__(self, shape: HeadShape, vocabulary: Tensor, scale: Tensor, shared: SharedWeights) -> None:
        super().__init__(shape.eps, vocabulary, shared)
        self.shape: HeadShape = shape
        size, inner, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.fc = nn.Linear(shape.taps * size, size, bias=False)
        layer: dict[str, nn.Module] = {
            "q_proj": nn.Linear(2 * size, inner, bias=False),
            "k_proj": nn.Linear(2 * size, kv, bias=False),
            "v_proj": nn.Linear(2 * size, kv, bias=False),
            "o_proj": nn.Linear(inner, size, bias=False),
            "gate_proj": nn.Linear(size, shape.intermediate, bias=False),
            "up_proj": nn.Linear(size, shape.intermediate, bias=False),
            "down_proj": nn.Linear(shape.intermediate, size, bias=False),
            "input_layernorm": nn.RMSNorm(size, eps=shape.eps),
            "hidden_norm": nn.RMSNorm(size, eps=shape.eps),
            "post_attention_layernorm": nn.RMSNorm(size, eps=shape.eps),
        }
        self.layer = nn.ModuleDict(layer)
        self.register_buffer("scale", scale.float(), persistent=True)
        _initialise(self, shared)

    def unroll(self, batch: Batch, steps: int, chance: torch.Generator | None = None) -> list[Unrolled]:
        """``steps`` guesses in a row at every place: training sees the states that drafting will see. In training
        ``chance`` chooses the places at which later guesses are scored."""
        layer: Any = self.layer
        n = batch.hidden.shape[1] - 1
        state = self.fc(batch.hidden[:, :n] / self.scale).float()  # the stream stays float32 under autocast
        places = torch.arange(n)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        out = []
        for step in range(min(steps, n)):
            token = batch.tokens[:, 1 + step : 1 + step + n]
            token = functional.pad(token, (0, n - token.shape[1]))
            residual = layer["hidden_norm"](state)
            both = torch.cat([layer["input_layernorm"](self.embedding[token]), residual], dim=-1)
            q, k, v = (self._heads(layer[name](both)) for name in ("q_proj", "k_proj", "v_proj"))
            q, k = (self._rotate(x, places + step) for x in (q, k))
            keys.append(k)
            values.append(v)
            state = residual + layer["o_proj"](self._attend(q, keys, values))
            inner = layer["post_attention_layernorm"](state)
            state = state + layer["down_proj"](functional.silu(layer["gate_proj"](inner)) * layer["up_proj"](inner))
            laws = batch.ids[:, 1 + step :], batch.chances[:, 1 + step :]
            out.append(self.score(state, *laws, share=_LATER if step else 1.0, chance=chance))
        return out

    def exported(self) -> dict[str, NDArray[np.float32]]:
        """The parameters under the names of the file, for rows as the target shows them."""
        names = {"fc.weight": self.fc.weight / self.scale, "norm.weight": self.norm.weight}
        for name, module in self.layer.items():
            part = "self_attn." if name in _ATTENTION else "mlp." if name in _MLP else ""
            names[f"layers.0.{part}{name}.weight"] = module.get_parameter("weight")
        return {name: weight.detach().float().numpy().copy() for name, weight in names.items()}

    def _heads(self, x: Tensor) -> Tensor:
        x = x.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
        return x.repeat_interleave(self.shape.heads // x.shape[1], dim=1)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        half = self.shape.head_dim // 2
        turns = self.shape.rope_theta ** (-torch.arange(half) / half)
        angles = positions[:, None] * turns
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def _attend(self, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Rows see the window of first-step keys up to their base row, and the later keys of their own base row."""
        n = q.shape[2]
        root = self.shape.head_dim**-0.5
        apart = torch.arange(n)[:, None] - torch.arange(n)
        hidden = (apart < 0) | (apart >= self.shape.window)
        scores = (q @ keys[0].transpose(-1, -2) * root).float().masked_fill(hidden, -torch.inf)
        own = [(q * k).sum(-1, keepdim=True).float() * root for k in keys[1:]]
        weights = torch.cat([scores, *own], dim=-1).softmax(-1).to(q.dtype)
        mixed = weights[..., :n] @ values[0]
        for i, v in enumerate(values[1:]):
            mixed = mixed + weights[..., n + i : n + i + 1] * v
        return mixed.transpose(1, 2).flatten(2)


@torch.no_grad()
def _initialise(head: Head, shared: SharedWeights) -> None:
    """From the target's last layer where its shape fits: it reads and writes the same stream. The stream is scaled to
    about one, which the norms undo; each key-value head is repeated for the query heads that share it."""
    shape, source = head.shape, shared.last_layer
    layer: Any = head.layer
    head.norm.weight.copy_(torch.from_numpy(shared.norm))
    size = shape.hidden
    for name in ("q_proj", "k_proj", "v_proj"):
        layer[name].weight.normal_(0.0, 0.01)
    layer["v_proj"].weight[:, :size].normal_(0.0, size**-0.5)
    last = head.scale[-size:]
    spread = float((last**2).mean().sqrt())
    head.fc.weight.normal_(0.0, 0.002)
    head.fc.weight[:, -size:] += torch.diag(last / spread)
    inner = shape.heads * shape.head_dim
    if source is None or source.gate.shape != (shape.intermediate, size) or len(source.q) != inner:
        return
    norm = torch.from_numpy(source.attention_norm)
    for name, matrix in (("q_proj", source.q), ("k_proj", source.k), ("v_proj", source.v)):
        rows = torch.from_numpy(matrix) * norm
        group = layer[name].weight.shape[0] // len(rows)
        rows = rows.unflatten(0, (-1, shape.head_dim)).repeat_interleave(group, dim=0).flatten(0, 1)
        layer[name].weight[:, size:] = rows
    layer["post_attention_layernorm"].weight.copy_(torch.from_numpy(source.mlp_norm))
    layer["o_proj"].weight.copy_(torch.from_numpy(source.o) / spread)
    layer["gate_proj"].weight.copy_(torch.from_numpy(source.gate))
    layer["up_proj"].weight.copy_(torch.from_numpy(source.up))
    layer["down_proj"].weight.copy_(torch.from_numpy(source.down) / spread)
