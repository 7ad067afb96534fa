"""A head from prompts, step by step: collect texts and rows, fit, export, judge; each goes on where it was stopped.

Knows the order of things and the files they leave. Does not know the command line, nor torch until it fits.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sooner.engine import Engine
from sooner.errors import InvalidRequest, MissingExtra
from sooner.prompt import Prompt
from sooner.store.head_file import HeadShape
from sooner.store.manifest import ModelFiles
from sooner.train.collect import Collected, collect, read_texts
from sooner.train.make import Recipe, asked_prompts, begin_collection, writing
from sooner.train.rows import Passage, collect_rows, read_rows, shards

if TYPE_CHECKING:
    from sooner.train.fit import Acceptance, Fit

__all__ = ["STEPS", "Sizes", "Workshop", "default_taps", "head_path", "torch_or_say"]

Step = Literal["collect", "fit", "export", "eval"]
STEPS: tuple[Step, ...] = ("collect", "fit", "export", "eval")
"""What making a head consists of, in order."""

_HELD_OUT = 16
"""One prompt in this many is kept from training and judged on."""

_JUDGED = 8_000
"""Most held-out rows judged on."""

_ROW_BYTES = 250
"""Of one collected row, besides its hidden values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """``vocabulary``: tokens that the head can name; ``window``: positions its attention reaches back; ``kv_heads``: of
    its attention, 0 for as many as the target has query heads (the token enters through them)."""

    vocabulary: int = 12_288
    window: int = 64
    kv_heads: int = 0


def default_taps(layers: int) -> tuple[int, ...]:
    """Three layers whose rows a head reads: at a quarter, at just over half, and the last but one."""
    return tuple(sorted({max(0, layers * 4 // 15), layers * 17 // 30, max(0, layers - 2)}))


def head_path(model: str) -> Path:
    """Where the head of a model lies when it is to be found by itself. Raises `InvalidRequest` if there is no name."""
    from sooner.store.cache import cache_dir

    if not model or "/" in model or "\0" in model:
        raise InvalidRequest("this model has no hash to keep its head under: give a folder with --out")
    return cache_dir("heads") / model[:16]


class Workshop:
    """The folder beside ``out`` in which a head is made: texts, rows, checkpoints. It can be removed afterwards."""

    def __init__(self, out: Path, files: ModelFiles, sizes: Sizes, seed: int = 0) -> None:
        self.out = out
        self.seed = seed
        self.files = files
        self.sizes = sizes
        self.taps = default_taps(files.layers)
        self.folder = out.with_name(f"{out.name}.work")
        self.texts = self.folder / "texts.jsonl"
        self.rows = self.folder / "rows"
        self.held = self.folder / "held-out"
        self.checkpoint = self.folder / "fit.pt"

    def collect(
        self,
        engine: Engine,
        prompts: list[tuple[Prompt, str]] | None,
        recipe: Recipe,
        *,
        batch: int = 8,
        progress: Callable[[str, int, int], None] = lambda what, done, of: None,
    ) -> int:
        """Texts of ``engine`` (loaded with ``taps``) and the target's rows over them; returns the rows to train on.

        Raises `InvalidRequest`: nothing usable among the prompts, no room on the disk, texts of another recipe.
        """
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._check_room(recipe.tokens)
            begin_collection(self.texts, recipe)
            total = collect(
                engine,
                asked_prompts(engine, prompts, recipe),
                self.texts,
                tokens=recipe.tokens,
                sampling=recipe.sampling,
                quoting=prompts is None,
                in_flight=batch,
                progress=lambda done: progress("texts", done, recipe.tokens),
            )
            target = engine.target
            collect_rows(target, self._texts(held=True), self.held)
            rows = collect_rows(
                target, self._texts(held=False), self.rows, progress=lambda done: progress("rows", done, total)
            )
        if not rows or not shards(self.held):
            raise InvalidRequest("too few texts came of these prompts to train on: give others, or a larger --tokens")
        return rows

    def fit(
        self,
        *,
        hours: float,
        progress: Callable[[Fit, Acceptance, float], None] = lambda fit, judged, share: None,
        every: float = 300.0,
    ) -> Acceptance:
        """Fit for ``hours`` (the last fifth with a falling rate), saving and judging ``every`` seconds; goes on from
        the checkpoint. Raises `InvalidRequest`, `MissingExtra`."""
        fit, held = self._begin(), self.held_out()
        begun = told = time.monotonic()
        end = begun + hours * 3600.0

        def rate() -> float:
            left = (end - time.monotonic()) / (0.2 * hours * 3600.0)
            return fit.plan.rate * min(1.0, max(left, 0.02))

        try:
            with writing(self.folder):
                for _ in fit.run([self.rows], rate=rate):
                    now = time.monotonic()
                    if now - told < every and now < end:
                        continue
                    told = now
                    fit.save(self.checkpoint)
                    progress(fit, fit.judge(held), (now - begun) / max(end - begun, 1e-9))
                    if now >= end:
                        break
        except KeyboardInterrupt:
            with writing(self.folder):
                fit.save(self.checkpoint)
            raise
        return fit.judge(held)

    def export(self) -> int:
        """Write the fitted head to ``out`` in the format of other tools; returns its bytes. Raises `InvalidRequest`."""
        from sooner.store.head_file import HeadFile, write_head

        if not self.checkpoint.exists():
            raise InvalidRequest(f"{self.folder} holds no fitted head yet: run the step fit first")
        fit = self._begin()
        recipe = _recipe_of(self.texts)
        made = {"recipe": recipe, "plan": asdict(fit.plan), "positions_seen": fit.seen, "epochs": fit.epoch}
        head = HeadFile(
            shape=fit.head.shape,
            layers=self.taps,
            vocabulary=fit.head.get_buffer("vocabulary").numpy(),
            weights=fit.average.exported(),
            vocab_size=self.files.vocab_size,
            target=self.files.sha256,
            target_name=self.files.source,
            made=made,
        )
        with writing(self.out):
            write_head(head, self.out)
        return sum(path.stat().st_size for path in self.out.iterdir())

    def _begin(self) -> Fit:
        torch_or_say()
        import torch

        from sooner.targets.openvino.weights import read_weights
        from sooner.train.fit import Fit, Plan, count_tokens, measure_scale
        from sooner.train.head import Head

        if not shards(self.rows):
            raise InvalidRequest(f"{self.folder} holds no rows to train on: run the step collect first")
        if self.checkpoint.exists():
            known = Fit.sizes(self.checkpoint)
            return Fit.load(self.checkpoint, Head(*known, read_weights(self.files.xml)))
        some = [passage for path in shards(self.rows)[:8] for passage in read_rows(path)]
        shared = read_weights(self.files.xml)
        counts = count_tokens((p for path in shards(self.rows) for p in read_rows(path)), len(shared.embedding))
        vocabulary = counts.topk(min(self.sizes.vocabulary, int((counts > 0).sum()))).indices.sort().values
        shape = _shape(self.files, self.sizes, len(self.taps))
        torch.manual_seed(self.seed)  # for the parts that do not start from the target
        return Fit(Head(shape, vocabulary, measure_scale(some), shared), Plan(seed=self.seed))

    def held_out(self) -> list[Passage]:
        """Passages that are not trained on. Raises `InvalidRequest` if there are none yet."""
        found: list[Passage] = []
        for path in shards(self.held):
            for passage in read_rows(path):
                if sum(len(p.ids) for p in found) < _JUDGED:
                    found.append(passage)
        if not found:
            raise InvalidRequest(f"{self.folder} holds no held-out rows: run the step collect first")
        return found

    def _texts(self, *, held: bool) -> Iterator[Collected]:
        return (text for text in read_texts(self.texts) if _is_held_out(text) == held)

    def _check_room(self, tokens: int) -> None:
        bytes_each = 2 * len(self.taps) * self.files.hidden_size + _ROW_BYTES
        there = sum(path.stat().st_size for path in self.folder.rglob("*.npz"))
        wanted = tokens * bytes_each - there
        free = shutil.disk_usage(self.folder).free
        if wanted > free:
            raise InvalidRequest(
                f"{tokens:,} tokens need {wanted / 1e9:.1f} GB in {self.folder}, {free / 1e9:.1f} GB are free: "
                "give a smaller --tokens, or --out on another disk"
            )


def torch_or_say() -> None:
    """Raise `MissingExtra` where torch is not installed."""
    if find_spec("torch") is None:
        raise MissingExtra("training a head", "train")


def _is_held_out(text: Collected) -> bool:
    """By the prompt, so that no text of a held-out prompt is trained on."""
    digest = hashlib.sha256(json.dumps(text.prompt).encode()).digest()
    return digest[0] % _HELD_OUT == 0


def _recipe_of(texts: Path) -> Any:
    try:
        with texts.open(encoding="utf-8") as lines:
            return json.loads(lines.readline()).get("recipe")
    except (OSError, ValueError, AttributeError):
        return None


def _shape(files: ModelFiles, sizes: Sizes, taps: int) -> HeadShape:
    """A head with the sizes of one of the target's layers."""
    config = json.loads((files.folder / "config.json").read_text(encoding="utf-8"))
    heads = int(config["num_attention_heads"])
    return HeadShape(
        hidden=files.hidden_size,
        taps=taps,
        heads=heads,
        kv_heads=sizes.kv_heads or heads,
        head_dim=int(config.get("head_dim") or files.hidden_size // heads),
        intermediate=int(config["intermediate_size"]),
        rope_theta=float(config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta", 1e4)),
        eps=float(config.get("rms_norm_eps", 1e-5)),
        window=sizes.window,
    )
