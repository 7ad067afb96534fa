"""A head from prompts: what a `Workshop` fits, exports and judges where the drafter is a head.

Knows a head's sizes and file. Does not know the steps, nor torch until it fits.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sooner.engine import Engine
from sooner.errors import InvalidRequest
from sooner.store.head_file import HeadShape
from sooner.store.manifest import ModelFiles
from sooner.train.rows import read_rows, shards
from sooner.train.workshop import Workshop, torch_or_say

if TYPE_CHECKING:
    from sooner.train.fit import Fit
    from sooner.train.judge import Judgement

__all__ = ["HeadWorkshop", "default_taps"]


def default_taps(layers: int) -> tuple[int, ...]:
    """Three layers whose rows a head reads: at a quarter, at just over half, and the last but one."""
    return tuple(sorted({max(0, layers * 4 // 15), layers * 17 // 30, max(0, layers - 2)}))


class HeadWorkshop(Workshop):
    """Makes a head (`train.head`). ``window``: positions its attention reaches back; ``kv_heads``: of its attention, 0
    for as many as the target has query heads (the token enters through them)."""

    kind = "head"

    def __init__(
        self,
        out: Path,
        files: ModelFiles,
        *,
        vocabulary: int = 12_288,
        window: int = 64,
        kv_heads: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(out, files, vocabulary=vocabulary, seed=seed)
        self.taps = default_taps(files.layers)
        self._window = window
        self._kv_heads = kv_heads

    def begin(self) -> Fit:
        """The head and its place in the data. Raises `InvalidRequest`, `MissingExtra`."""
        torch_or_say(self.kind)
        import torch

        from sooner.targets.openvino.weights import read_weights
        from sooner.train.fit import Fit, Plan, measure_scale
        from sooner.train.head import Head

        shared = read_weights(self.files.xml)
        if self.checkpoint.exists():
            shape, known = Fit.sizes(self.checkpoint, Head)
            return Fit.load(self.checkpoint, Head(HeadShape(**shape), known["vocabulary"], known["scale"], shared))
        vocabulary = self.frequent(len(shared.embedding))
        some = [passage for path in shards(self.rows)[:8] for passage in read_rows(path)]
        if some[0].hidden.shape[1] != len(self.taps) * self.files.hidden_size:
            raise InvalidRequest(f"{self.rows} holds no hidden rows of this model's layers: give another --out")
        torch.manual_seed(self.seed)  # for the parts that do not start from the target
        return Fit(Head(self._shape(), vocabulary, measure_scale(some), shared), Plan(seed=self.seed))

    def export(self) -> int:
        """Write the head in the format of other tools; returns its bytes. Raises `InvalidRequest`."""
        fit = self.fitted()  # before what needs torch: without it nothing was fitted
        from sooner.store.head_file import HeadFile, write_head
        from sooner.train.head import Head
        from sooner.train.make import writing

        assert isinstance(fit.average, Head)
        made = {
            "recipe": self.recipe(),
            "plan": asdict(fit.plan),
            "positions_seen": fit.seen,
            "epochs": fit.epoch,
        }
        head = HeadFile(
            shape=fit.average.shape,
            layers=self.taps,
            vocabulary=fit.average.get_buffer("vocabulary").numpy(),
            weights=fit.average.exported(),
            vocab_size=self.files.vocab_size,
            target=self.files.sha256,
            target_name=self.files.source,
            made=made,
        )
        with writing(self.out):
            write_head(head, self.out)
        return sum(path.stat().st_size for path in self.out.iterdir())

    def judge(self, engine: Engine, *, threads: int | None = None) -> Judgement:
        """What the exported head is worth; ``engine`` shows ``taps``. Raises `DraftError`, `InvalidRequest`."""
        from sooner.control.cost import measure_cost
        from sooner.loading import open_head
        from sooner.train.judge import judge_head

        head = open_head(str(self.out), True, files=self.files, taps=self.taps, threads=threads)
        return judge_head(head, self.held_out(), measure_cost(engine.target))

    def _shape(self) -> HeadShape:
        """A head with the sizes of one of the target's layers."""
        config = json.loads((self.files.folder / "config.json").read_text(encoding="utf-8"))
        heads = int(config["num_attention_heads"])
        return HeadShape(
            hidden=self.files.hidden_size,
            taps=len(self.taps),
            heads=heads,
            kv_heads=self._kv_heads or heads,
            head_dim=int(config.get("head_dim") or self.files.hidden_size // heads),
            intermediate=int(config["intermediate_size"]),
            rope_theta=float(config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta", 1e4)),
            eps=float(config.get("rms_norm_eps", 1e-5)),
            window=self._window,
        )
