"""How a drafter is fitted to its target, step by step: collect texts and rows, fit; each goes on where it was stopped.

Knows the order of things and the files they leave. Does not know what is fitted, nor torch until it fits.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sooner.engine import Engine
from sooner.errors import InvalidRequest, MissingExtra
from sooner.prompt import Prompt
from sooner.store.manifest import ModelFiles
from sooner.train.collect import Collected, collect, read_texts
from sooner.train.make import Recipe, asked_prompts, begin_collection, writing
from sooner.train.rows import Passage, collect_rows, read_rows, shards

if TYPE_CHECKING:
    from torch import Tensor

    from sooner.train.fit import Acceptance, Fit
    from sooner.train.judge import Judgement

__all__ = ["STEPS", "Workshop", "cached_out", "is_held_out", "torch_or_say"]

Step = Literal["collect", "fit", "export", "eval"]
STEPS: tuple[Step, ...] = ("collect", "fit", "export", "eval")
"""What making a drafter consists of, in order."""

_HELD_OUT = 16
"""One prompt in this many is kept from training and judged on."""

_JUDGED = 8_000
"""Most held-out rows judged on."""

_ROW_BYTES = 250
"""Of one collected row, besides its hidden values."""


class Workshop:
    """The folder beside ``out`` in which a drafter is made: texts, rows, checkpoints. It can be removed afterwards.

    ``vocabulary``: most tokens that guesses are among while it is fitted. What is fitted is up to the subclass.
    """

    kind: ClassVar[str]
    """What is made, as a user would call it."""

    taps: tuple[int, ...] = ()
    """Layers of the target whose hidden rows are collected."""

    def __init__(self, out: Path, files: ModelFiles, *, vocabulary: int, seed: int = 0) -> None:
        self.out = out
        self.seed = seed
        self.files = files
        self.vocabulary = vocabulary
        self.folder = out.with_name(f"{out.name}.work")
        self.texts = self.folder / "texts.jsonl"
        self.rows = self.folder / "rows"
        self.held = self.folder / "held-out"
        self.checkpoint = self.folder / "fit.pt"

    def begin(self) -> Fit:
        """What is fitted, from the checkpoint if there is one. Raises `InvalidRequest`, `MissingExtra`."""
        raise NotImplementedError

    def export(self) -> int:
        """Write what was fitted to ``out``; returns its bytes. Raises `InvalidRequest`."""
        raise NotImplementedError

    def judge(self, engine: Engine, *, threads: int | None = None) -> Judgement:
        """What the exported drafter is worth beside the target of ``engine``. Raises `InvalidRequest`, `DraftError`."""
        raise NotImplementedError

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
            target, hidden = engine.target, bool(self.taps)
            collect_rows(target, self._texts(held=True), self.held, hidden=hidden)
            rows = collect_rows(
                target,
                self._texts(held=False),
                self.rows,
                hidden=hidden,
                progress=lambda done: progress("rows", done, total),
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
        if not shards(self.rows):
            raise InvalidRequest(f"{self.folder} holds no rows to train on: run the step collect first")
        fit, held = self.begin(), self.held_out()
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

    def fitted(self) -> Fit:
        """What was fitted. Raises `InvalidRequest` if nothing was."""
        if not self.checkpoint.exists():
            raise InvalidRequest(f"{self.folder} holds no fitted {self.kind} yet: run the step fit first")
        return self.begin()

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

    def recipe(self) -> Any:
        """How the texts came about; None if that is not known."""
        try:
            with self.texts.open(encoding="utf-8") as lines:
                return json.loads(lines.readline()).get("recipe")
        except (OSError, ValueError, AttributeError):
            return None

    def frequent(self, size: int) -> Tensor:
        """The ids most frequent in the rows, ascending; ``size``: of the target's vocabulary. `InvalidRequest` if there
        are no rows."""
        from sooner.train.fit import count_tokens

        if not shards(self.rows):
            raise InvalidRequest(f"{self.folder} holds no rows to train on: run the step collect first")
        counts = count_tokens((p for path in shards(self.rows) for p in read_rows(path)), size)
        return counts.topk(min(self.vocabulary, int((counts > 0).sum()))).indices.sort().values

    def _texts(self, *, held: bool) -> Iterator[Collected]:
        return (text for text in read_texts(self.texts) if is_held_out(text) == held)

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


def cached_out(place: str, model: str) -> Path:
    """Where a drafter of ``model`` (a sha256) lies in the cache. Raises `InvalidRequest` if there is no name."""
    from sooner.store.cache import cache_dir

    if not model or "/" in model or "\0" in model:
        raise InvalidRequest("this model has no hash to keep its drafter under: give a folder with --out")
    return cache_dir(place) / model[:16]


def torch_or_say(kind: str) -> None:
    """Raise `MissingExtra` where torch is not installed."""
    if find_spec("torch") is None:
        raise MissingExtra(f"training a {kind}", "train")


def is_held_out(text: Collected) -> bool:
    """By the prompt, so that no text of a held-out prompt is trained on."""
    digest = hashlib.sha256(json.dumps(text.prompt).encode()).digest()
    return digest[0] % _HELD_OUT == 0
