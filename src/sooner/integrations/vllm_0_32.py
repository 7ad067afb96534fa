"""vLLM from 0.32, before 0.33: its configuration, the arguments of a custom proposer, and the logits of its passes.

Knows what that version hands to the class that `custom_class` names. Does not know drafts.

The class is made with the configuration, gets the model once it is loaded, and is asked after every pass in which no
request is near the end of the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.integrations.vllm_guess import Scored
from sooner.integrations.vllm_port import Place
from sooner.integrations.vllm_port import Watch as WatchContract
from sooner.integrations.vllm_texts import Row

__all__ = ["Logits", "Watch", "read", "rows", "watch"]


def read(config: Any) -> Place:
    """Of a ``VllmConfig``."""
    model, parallel = config.model_config, config.parallel_config
    several = parallel.pipeline_parallel_size > 1
    return Place(
        model=str(model.model),
        vocab_size=int(model.get_vocab_size()),
        context=int(model.max_model_len),
        most=int(config.speculative_config.num_speculative_tokens),
        options=(config.additional_config or {}).get("sooner", {}),
        obstacle="sooner drafts in vLLM without pipeline parallelism: set pipeline_parallel_size=1" if several else "",
    )


def rows(
    sampled_token_ids: Sequence[Sequence[int]],
    num_tokens_no_spec: NDArray[np.int32],
    token_ids_cpu: NDArray[np.int32],
    slot_mappings: object = None,
) -> list[Row]:
    """``num_tokens_no_spec`` ``[B]`` counts the tokens of ``token_ids_cpu`` ``[B, context]``, sampled ones included;
    where a pass read only a part of a prompt, nothing was sampled."""
    return [Row(sampled, token_ids_cpu[i, : int(num_tokens_no_spec[i])]) for i, sampled in enumerate(sampled_token_ids)]


def watch() -> WatchContract:
    """A fresh watch."""
    return Watch()


class Logits:
    """One pass's, a tensor ``[rows, V]`` on any device."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    @property
    def count(self) -> int:
        """Rows in all."""
        return int(self._tensor.shape[0])

    def rows(self, begin: int, end: int) -> NDArray[np.float32]:
        """Those rows, ``[end - begin, V]``."""
        found: NDArray[np.float32] = self._tensor[begin:end].float().cpu().numpy()
        return found


class Watch:
    """Keeps what the model's ``compute_logits`` returned last, until it is taken. Before anything is first taken,
    passes are vLLM's own trials of memory and shapes, of which nothing is kept."""

    def __init__(self) -> None:
        self._last: Any = None
        self._begun = False

    def attach(self, model: Any) -> bool:
        """Watch ``model``; False if it has no such method."""
        compute = getattr(model, "compute_logits", None)
        if compute is None:
            return False

        def watched(*given: Any, **named: Any) -> Any:
            logits = compute(*given, **named)
            self._last = logits if self._begun else None
            return logits

        model.compute_logits = watched
        return True

    def take(self) -> Scored | None:
        """The last ones; None if there were none since."""
        self._begun = True
        last, self._last = self._last, None
        return None if last is None else Logits(last)
