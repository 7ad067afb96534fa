"""Runs passes: works in, rows of logits out, and for each work how a path of its draft would be kept.

Knows the model's port, the cache's tensors and the row rule. Does not know sessions or who waits for a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sooner.errors import TargetError, one_line
from sooner.targets.torch.attention import ByChains
from sooner.targets.torch.cache import Port
from sooner.targets.torch.device import out_of_memory
from sooner.targets.torch.kv import KVTensors
from sooner.targets.torch.layout import Pass, RowRule, Text
from sooner.targets.torch.session import Keep
from sooner.targets.torch.taps import Taps
from sooner.types import Logits, Work

__all__ = ["Runner", "Scored"]

Held = tuple[int, int]
"""A session's slot, and how many tokens it holds there."""

Scored = tuple[Logits, NDArray[np.float32] | None, list[Keep]]


class Runner:
    """Runs every pass as one flat row of tokens, attention chain by chain (`ByChains`)."""

    def __init__(self, port: Port, kv: KVTensors, device: Any, rule: RowRule, taps: Taps) -> None:
        self.port = port
        self.kv = kv
        self.device = device
        self.rule = rule
        self.taps = taps

    @property
    def widths(self) -> tuple[int, ...]:
        """Row counts of ready-made passes: none, any number is as good."""
        return ()

    def run(self, works: Sequence[Work], held: Sequence[Held]) -> Scored:
        """Rows of all works. Raises `TargetError`."""
        try:
            with torch.inference_mode():
                return self._run(works, held)
        except TargetError:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise TargetError(
                    f"{self.device} is out of memory in a pass: load with a smaller --context, or fewer texts at a time"
                ) from error
            raise TargetError(f"the model failed in a pass: {one_line(error)}") from error

    def _run(self, works: Sequence[Work], held: Sequence[Held]) -> Scored:
        flat = Pass()
        end = slots = 0
        for work, (slot, past) in zip(works, held, strict=True):
            text = flat.feed(work, slot, past)
            end = max(end, past + len(work.tokens) + text.nodes)
            slots = max(slots, slot + 1)
        self.kv.reserve(slots, min(end, self.kv.context))
        flat.pad(self.rule)
        attending = self.attending(flat.texts)
        logits, hidden = self.forward(flat.tokens, flat.positions, flat.wanted, attending)
        return logits, hidden, [partial(_keep, attending, text) for text in flat.texts]

    def given(self, tokens: Sequence[int], positions: Sequence[int]) -> tuple[Any, Any]:
        """Tokens and positions of a pass as the port takes them."""
        both = torch.tensor([tokens, positions], device=self.device)
        return both[0], both[1]

    def attending(self, texts: Sequence[Text]) -> ByChains:
        """How the rows of a pass over ``texts`` attend."""
        return ByChains(self.kv, texts)

    def forward(
        self, tokens: Sequence[int], positions: Sequence[int], wanted: Sequence[int], attending: Any
    ) -> tuple[Logits, NDArray[np.float32] | None]:
        """The model once. ``wanted`` rows are padded by the rule, too: the last product has a row count of its own."""
        n = len(wanted)
        read = [*wanted, *([len(tokens) - 1] * (self.rule.width(max(n, 1)) - n))]
        index = torch.tensor(read, device=self.device)
        logits = self.port.forward(*self.given(tokens, positions), index, attending)
        return as_numpy(logits[:n]), self.taps.take(index[:n])


def _keep(attending: ByChains, text: Text, path: Sequence[int]) -> None:
    """The main chain lies where it belongs; a path that leaves it is written over it."""
    main = text.chains[-1].rows[text.root - text.first + 1 :]
    if main[: len(path)] != tuple(text.root + 1 + node for node in path):
        with torch.inference_mode():
            attending.write(text, path)


def as_numpy(tensor: Any) -> NDArray[np.float32]:
    """As float32 on the processor: a view where it is that already."""
    array: NDArray[np.float32] = tensor.float().cpu().numpy()
    return array
