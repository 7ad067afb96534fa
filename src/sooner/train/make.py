"""A successor table from prompts: collect the target's own text, count it, store the table with its recipe.

Knows the order of things and the files they leave. Does not know the command line.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sooner.bench.workload import read_workload
from sooner.engine import Engine
from sooner.errors import InvalidRequest
from sooner.prompt import Prompt
from sooner.store.cache import cache_dir, locked
from sooner.train.collect import collect, read_texts
from sooner.train.table import build_table
from sooner.train.templates import builtin_prompts
from sooner.types import Sampling

__all__ = [
    "BUILT_IN",
    "Made",
    "Recipe",
    "asked_prompts",
    "begin_collection",
    "check_out",
    "collection_path",
    "make_table",
    "prompts_of",
    "table_path",
    "writing",
]

BUILT_IN = "built-in"
"""What a recipe calls the prompts that come with sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the text of a table comes about; the same recipe and model give the same prompts and seeds.

    ``prompts``: `BUILT_IN`, or the SHA-256 of the user's. ``tokens``: how many are collected; a collection may go on to
    more. ``model``: the sha256 of the weights. ``sooner``: the version.
    """

    prompts: str
    tokens: int
    max_tokens: int
    temperature: float
    seed: int
    model: str
    sooner: str

    @property
    def sampling(self) -> Sampling:
        """How the texts are drawn."""
        return Sampling(temperature=self.temperature, seed=self.seed, max_tokens=self.max_tokens)

    @property
    def texts(self) -> dict[str, Any]:
        """What every single text depends on: texts of equal such parts may be counted together."""
        return {name: value for name, value in asdict(self).items() if name not in ("tokens", "sooner")}


@dataclass(frozen=True, slots=True)
class Made:
    """A finished table: where it is, its contexts and bytes, and the texts and tokens it was counted from."""

    path: Path
    contexts: int
    size: int
    texts: int
    tokens: int


def check_out(out: Path) -> None:
    """Raise `InvalidRequest` if a table cannot be written to ``out``, before anything is computed for it."""
    if out.is_dir():
        raise InvalidRequest(f"--out {out} is a folder: name a file in it, as in {out / 'table.npz'}")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise InvalidRequest(f"--out {out} cannot be written: give a path in a folder that exists and is yours")


def table_path(model: str) -> Path:
    """Where the table of a model lies when it is to be found by itself. Raises `InvalidRequest` if there is no name."""
    if not model or "/" in model or "\0" in model:
        raise InvalidRequest("this model has no hash to keep its table under: give a file with --out")
    return cache_dir("tables") / f"{model[:16]}.npz"


def collection_path(out: Path) -> Path:
    """Where the texts of an unfinished table are kept, beside it."""
    return out.with_name(f"{out.name}.texts.jsonl")


def prompts_of(file: str | None) -> tuple[str, list[tuple[Prompt, str]] | None]:
    """What a recipe calls the prompts in ``file``, and these with the model that each is bound to ("": any).

    Of a file the first prompt a line or a record counts (`bench.workload`). None stands for the built-in ones.
    Raises `InvalidRequest` if the file holds none.
    """
    if file is None:
        return BUILT_IN, None
    items = [(item.prompt, item.model) for item in read_workload(file)]
    return hashlib.sha256(json.dumps(items).encode()).hexdigest(), items


def make_table(
    engine: Engine,
    prompts: list[tuple[Prompt, str]] | None,
    out: Path,
    recipe: Recipe,
    *,
    batch: int = 8,
    progress: Callable[[int], None] = lambda done: None,
    waiting: Callable[[], None] = lambda: None,
) -> Made:
    """Collect ``recipe.tokens`` of the engine's answers to ``prompts`` (None: the built-in ones) and count them.

    What was collected stays in `collection_path` until the table is written, and a second call with the same recipe
    goes on there. At temperature > 0 a short list of prompts is asked over and over; at 0 only once. ``waiting`` is
    called if another process is making the same table. Raises `InvalidRequest`.
    """
    texts = collection_path(out)
    key = hashlib.sha256(str(out.absolute()).encode(errors="surrogateescape")).hexdigest()[:24]
    with locked(f"train-{key}", waiting), writing(out):
        asked = asked_prompts(engine, prompts, recipe)
        begin_collection(texts, recipe)
        total = collect(
            engine,
            asked,
            texts,
            tokens=recipe.tokens,
            sampling=recipe.sampling,
            quoting=prompts is None,
            in_flight=batch,
            progress=progress,
        )
        if not total:
            texts.unlink()
            raise InvalidRequest("the model wrote nothing to these prompts: give others, or a larger --max-tokens")
        pairs = ((text.prompt, text.tokens) for text in read_texts(texts))
        count = sum(1 for _ in read_texts(texts))
        table = build_table(pairs, model=recipe.model, recipe=json.dumps(asdict(recipe)))
        table.save(out)
        texts.unlink()
    return Made(out, table.contexts, out.stat().st_size, count, total)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Say what to do where ``out`` cannot be written: `InvalidRequest` for every `OSError` within."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(f"{out} cannot be written ({reason}): free some space, or give another --out") from error


def begin_collection(texts: Path, recipe: Recipe) -> None:
    """Head the collection with its recipe. Texts of another recipe are not mixed in, nor thrown away unasked."""
    if texts.exists():
        with texts.open(encoding="utf-8", errors="replace") as lines:
            head = lines.readline()
        try:
            found = json.loads(head)["recipe"]
        except (ValueError, KeyError, TypeError):
            found = None
        if found == recipe.texts:
            return
        if next(read_texts(texts), None) is not None:
            raise InvalidRequest(
                f"{texts} was collected with other prompts, options or another model: repeat those, remove it, or "
                "give another --out"
            )
    texts.write_text(json.dumps({"recipe": recipe.texts}) + "\n", encoding="utf-8")


def asked_prompts(engine: Engine, prompts: list[tuple[Prompt, str]] | None, recipe: Recipe) -> Iterable[Prompt]:
    """What is asked for ``recipe``: the built-in prompts without end, or the user's that ``engine`` can answer, over
    and over where texts are drawn. Raises `InvalidRequest` if none can."""
    if prompts is None:
        return builtin_prompts(recipe.seed)
    usable = [prompt for prompt, model in prompts if model in ("", recipe.model) and _fits(engine, prompt)]
    if not usable:
        foreign = any(model not in ("", recipe.model) for _, model in prompts)
        why = "they were recorded with another model" if foreign else "all are longer than the context"
        raise InvalidRequest(f"no prompt can be used ({why}): give others, or leave them out for the built-in ones")
    return itertools.cycle(usable) if recipe.temperature > 0 else usable


def _fits(engine: Engine, prompt: Prompt) -> bool:
    try:
        return 0 < len(engine.request(prompt).prompt) < engine.target.context
    except InvalidRequest:
        return False
