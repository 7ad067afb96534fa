"""A pruned draft from prompts: what a `Workshop` fits, exports and judges where the drafter is a model of its own.

Knows which layers are kept, and the files of the exported model. Does not know the steps, nor torch until it fits.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sooner.engine import Engine
from sooner.errors import InvalidRequest, UnsupportedModel
from sooner.store.folder import IR, SETTINGS
from sooner.store.manifest import ModelFiles
from sooner.train.make import writing
from sooner.train.workshop import Workshop, torch_or_say

if TYPE_CHECKING:
    from sooner.targets.openvino.prune import Pruned
    from sooner.train.fit import Fit
    from sooner.train.judge import Judgement
    from sooner.train.pruned import PrunedDraft, PrunedShape

__all__ = ["DraftWorkshop", "default_layers", "evenly"]

_PROBE = 48
"""Tokens on which the copy in torch must agree with the graph."""

_SAME = 1e-2
"""By how much their logits may differ, as a share of the largest."""


def default_layers(layers: int) -> int:
    """How many of the target's layers a draft keeps: about one in eight, at least one."""
    return max(1, round(layers / 8))


def evenly(layers: int, kept: int) -> tuple[int, ...]:
    """``kept`` of ``layers``, the first and the last among them (of one: the first). Raises `InvalidRequest`."""
    if not 0 < kept < layers:
        raise InvalidRequest(f"--layers must leave out some of the model's {layers} layers and keep one, not {kept}")
    return tuple(round(i * (layers - 1) / max(kept - 1, 1)) for i in range(kept))


class DraftWorkshop(Workshop):
    """Makes a draft model of ``layers`` of the target's own layers (None: `default_layers`), fitted to the target's
    laws over its own text. It has the target's vocabulary, embedding and LM head."""

    kind = "draft"

    def __init__(
        self, out: Path, files: ModelFiles, *, layers: int | None = None, vocabulary: int = 12_288, seed: int = 0
    ) -> None:
        super().__init__(out, files, vocabulary=vocabulary, seed=seed)
        self.kept = evenly(files.layers, default_layers(files.layers) if layers is None else layers)
        self._chosen = layers is not None

    def begin(self) -> Fit:
        """The draft and its place in the data. Raises `InvalidRequest`, `MissingExtra`, `ModelError`."""
        torch_or_say(self.kind)
        from sooner.targets.openvino.prune import Pruned
        from sooner.targets.openvino.weights import read_weights
        from sooner.train.fit import Fit, Plan
        from sooner.train.pruned import PrunedDraft, PrunedShape

        shared = read_weights(self.files.xml)
        if self.checkpoint.exists():
            known, parameters = Fit.sizes(self.checkpoint, PrunedDraft)
            shape = PrunedShape(**{**known, "kept": tuple(known["kept"])})
            self._adopt(shape)
            layers = Pruned(self.files.xml, shape.kept).layers()
            return Fit.load(self.checkpoint, PrunedDraft(shape, parameters["vocabulary"], shared, layers))
        vocabulary = self.frequent(len(shared.embedding))
        graph = Pruned(self.files.xml, self.kept)
        draft = PrunedDraft(self._shape(), vocabulary, shared, graph.layers())
        self._check_copy(draft, graph, shared.lm_head)
        return Fit(draft, Plan(places=512, seed=self.seed))

    def export(self) -> int:
        """Write the draft as a model folder: IR, settings, tokenizer; returns its bytes. Raises `InvalidRequest`."""
        fit = self.fitted()  # before what needs torch: without it nothing was fitted
        from sooner.targets.openvino.prune import Pruned
        from sooner.train.pruned import PrunedDraft

        draft = fit.average
        assert isinstance(draft, PrunedDraft)
        made = {
            "target_sha256": self.files.sha256,
            "layers": self.kept,
            "recipe": self.recipe(),
            "plan": asdict(fit.plan),
            "positions_seen": fit.seen,
            "epochs": fit.epoch,
        }
        norm = draft.norm.weight.detach().float().numpy()
        with writing(self.out), _whole(self.out) as folder:
            for name in SETTINGS:
                if (source := self.files.folder / name).is_file():
                    shutil.copyfile(source, folder / name)
            config = _pruned_config(json.loads((folder / "config.json").read_text(encoding="utf-8")), self.kept)
            text = json.dumps({**config, "sooner": made}, indent=1, ensure_ascii=False)
            (folder / "config.json").write_text(text, encoding="utf-8")
            Pruned(self.files.xml, self.kept).write(folder / IR, draft.exported(), norm)
        return sum(path.stat().st_size for path in self.out.iterdir())

    def judge(self, engine: Engine, *, threads: int | None = None) -> Judgement:
        """What the exported draft is worth. Raises `InvalidRequest`, `ModelError`."""
        from sooner.control.cost import measure_cost
        from sooner.loading import open_model
        from sooner.train.judge import judge_draft

        if not (self.out / IR).is_file():
            raise InvalidRequest(f"{self.out} holds no draft model yet: run the step export first")
        draft, _ = open_model(str(self.out), threads=threads, pool_tokens=engine.target.context)
        return judge_draft(draft, self.held_out(), measure_cost(draft), measure_cost(engine.target))

    def _adopt(self, shape: PrunedShape) -> None:
        """Go on with the layers of a checkpoint; other ones that were asked for are refused."""
        if self._chosen and shape.kept != self.kept:
            raise InvalidRequest(
                f"{self.checkpoint} keeps {len(shape.kept)} layers: leave out --layers to go on, or give another --out"
            )
        self.kept = shape.kept

    def _shape(self) -> PrunedShape:
        from sooner.train.pruned import PrunedShape

        config = json.loads((self.files.folder / "config.json").read_text(encoding="utf-8"))
        heads = int(config["num_attention_heads"])
        rope = config.get("rope_parameters") or {}
        scaling = config.get("rope_scaling") or rope
        if (kind := scaling.get("rope_type") or scaling.get("type") or "default") != "default":
            raise UnsupportedModel(
                f"{self.files.name} scales its rotary positions ({kind}), which drafts cannot be fitted with: "
                "use a model that does not"
            )
        return PrunedShape(
            kept=self.kept,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or self.files.hidden_size // heads),
            rope_theta=float(config.get("rope_theta") or rope.get("rope_theta", 1e4)),
            eps=float(config.get("rms_norm_eps", 1e-6)),
        )

    def _check_copy(self, draft: PrunedDraft, graph: Pruned, lm_head: NDArray[np.float32]) -> None:
        """Whatever the model's layers do beyond what was copied shows in other logits."""
        import torch

        tokens = [int(t) for t in self.held_out()[0].tokens[:_PROBE]]
        wanted = graph.logits(tokens)
        with torch.no_grad():
            found = draft.norm(draft.rows(torch.tensor([tokens])))[0].numpy() @ lm_head.T
        if np.abs(found - wanted).max() > _SAME * np.abs(wanted).max():
            raise UnsupportedModel(
                f"{self.files.name} has layers that do more than attention and a gated MLP with a norm before each: "
                "drafts of llama and qwen2 models can be fitted"
            )


def _pruned_config(config: dict[str, Any], kept: tuple[int, ...]) -> dict[str, Any]:
    text = config.get("text_config", config)
    text["num_hidden_layers"] = len(kept)
    if isinstance(kinds := text.get("layer_types"), list):
        text["layer_types"] = [kinds[i] for i in kept]
    return config


@contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A folder that takes the place of ``out`` when all of it is written, or never."""
    fresh, old = (out.with_name(f".{out.name}.{what}.{os.getpid()}") for what in ("new", "old"))
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        if out.exists():
            os.replace(out, old)
        os.replace(fresh, out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
