"""The compiled model: runs one flat pass over given KV tensors and returns the rows it was asked for.

Knows tensors, threads and precisions. Does not know sessions, trees or blocks' owners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import TargetError
from sooner.targets.openvino.graph import INPUTS, last_line
from sooner.targets.openvino.layout import Pass
from sooner.types import Logits

__all__ = ["Runner"]

_INT64 = ("input_ids", "position_ids", "rows")


class Runner:
    """One infer request whose input tensors live as long as it does: a pass only writes what changed in them.

    ``width``: every pass has so many tokens and scores so many rows (the graph was compiled for that); 0 = any number.
    """

    def __init__(self, compiled: Any, kv: Mapping[str, Any], taps: int = 0, width: int = 0) -> None:
        import openvino as ov

        self._request = compiled.create_infer_request()
        self._taps = taps
        self._hidden_type = compiled.outputs[1].element_type.get_type_name() if taps else ""
        self.kv = kv
        self._tensors: dict[str, Any] = {}
        self._width = width
        self._sizes = {name: width if name in _INT64 else 0 for name in INPUTS}
        for name, tensor in kv.items():
            self._request.set_tensor(name, tensor)
        for name in INPUTS:
            kind = ov.Type.i64 if name in _INT64 else ov.Type.u8 if name == "qq_bias" else ov.Type.i32
            tensor = ov.Tensor(kind, ov.Shape([] if name == "max_context_len" else [self._sizes[name]]))
            self._tensors[name] = tensor
            self._request.set_tensor(name, tensor)

    def run(self, flat: Pass) -> tuple[Logits, NDArray[np.float32] | None]:
        """Logits ``[R, V]`` and, with taps, hidden rows ``[R, taps * H]`` of ``flat.rows``; valid until the next run.

        Raises `TargetError` if the pass fails or a row holds what is not a finite number.
        """
        self._put("input_ids", flat.tokens)
        self._put("position_ids", flat.positions)
        self._put("past_lens", flat.past_lens)
        self._put("subsequence_begins", flat.begins)
        self._put("block_indices", flat.blocks)
        self._put("block_indices_begins", flat.block_begins)
        self._put("qq_bias", flat.bias)
        self._put("qq_bias_begins", flat.bias_begins)
        self._put("rows", [*flat.rows, *[0] * (self._width - len(flat.rows))])
        self._tensors["max_context_len"].data[...] = flat.longest
        try:
            self._request.start_async()
            self._request.wait()
        except RuntimeError as error:
            raise TargetError(f"the pass failed in OpenVINO: {last_line(error)}") from error
        logits: Logits = self._request.get_output_tensor(0).data[: len(flat.rows), 0]
        # The maximum is not finite if a row holds NaN or +inf; reading each value again for -inf would cost more.
        if len(logits) and not np.isfinite(logits.max()):
            raise TargetError("the model returned logits that are not finite: use precision f32 or check the model")
        return logits, self._hidden(len(flat.rows)) if self._taps else None

    def _put(self, name: str, values: Sequence[int]) -> None:
        tensor = self._tensors[name]
        if self._sizes[name] != len(values):
            tensor.shape = [len(values)]  # asking a tensor for its shape costs 12 us, so sizes are remembered
            self._sizes[name] = len(values)
        tensor.data[:] = values

    def _hidden(self, count: int) -> NDArray[np.float32]:
        rows = [self._floats(self._request.get_output_tensor(1 + i).data[:count]) for i in range(self._taps)]
        return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)

    def _floats(self, data: NDArray[Any]) -> NDArray[np.float32]:
        if self._hidden_type == "bf16":
            data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return np.asarray(data[:, 0], np.float32)
