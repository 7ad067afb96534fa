"""Layer skipping where it pays and where it does not, everything in turns in one process, texts asserted identical.

    python benchmarks/layerskip.py redundant [--folder FOLDER]
    python benchmarks/layerskip.py default [--seconds 60]

``redundant``: the default model with layers inserted that add next to nothing (kept in FOLDER), these left out of
drafts. ``default``: the model as it is, with the best set that a search of so many seconds finds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import keep, prompts
from core import as_dict, seconds
from gguf_files import rewrite

import sooner
from sooner.bench import ratio
from sooner.bench.shortened import measure_memory
from sooner.bench.workload import Item
from sooner.cli.skips import search_skips
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.loading import make_drafter
from sooner.protocols import Drafter
from sooner.store.default import default_gguf

INSERTED = 2
"""Layers behind each of the model's own."""

PART = 0.01
"""What an inserted layer adds, of what the layer it is a copy of adds."""

CATEGORIES = ("writing", "qa", "translation", "coding", "summarization", "roleplay")


def deepen(source: Path, path: Path, inserted: int = INSERTED, part: float = PART) -> Path:
    """Write ``source`` with ``inserted`` near-identities behind each layer; its matrices must be Q4_1."""

    def copies(tensor: Any) -> Iterator[tuple[str, Any]]:
        if not tensor.name.startswith("blk."):
            yield tensor.name, tensor.data
            return
        _, layer, rest = tensor.name.split(".", 2)
        for copy in range(inserted + 1):
            faint = copy and rest in ("attn_output.weight", "ffn_down.weight")
            data = scaled(tensor.data, part) if faint else tensor.data
            yield f"blk.{int(layer) * (inserted + 1) + copy}.{rest}", data

    count = "llama.block_count"
    return rewrite(source, path, lambda reader: {count: reader.fields[count].contents() * (inserted + 1)}, copies)


def scaled(data: Any, part: float) -> Any:
    """Q4_1 rows times ``part``: each block of 20 bytes begins with its scale and its offset, in half precision."""
    blocks = np.array(data).reshape(len(data), -1, 20)
    heads = np.ascontiguousarray(blocks[:, :, :4]).view(np.float16)
    blocks[:, :, :4] = (heads.astype(np.float32) * part).astype(np.float16).view(np.uint8)
    return blocks.reshape(data.shape)


def drafter(engine: Engine, name: str, skip: str) -> Drafter | None:
    """What is compared: nothing, the model-free set, layer skipping beside it, and layer skipping alone."""
    others, own = ["suffix", "recycle"], f"layerskip:skip={skip}"
    specs = {
        "plain": None,
        "model_free": others,
        "with_layerskip": [*others, own],
        "layerskip": [own],
        "layerskip_always": [f"{own},thrifty=false"],
    }
    return make_drafter(specs[name], engine.target, engine.codec, engine.fingerprint["model"])


def compare(engine: Engine, skip: str, kinds: tuple[str, ...], chosen: argparse.Namespace) -> dict[str, Any]:
    """``kinds`` of `drafters` in turns on each prompt: speed over plain, and what drafting with the model took."""
    known = {name: drafter(engine, name, skip) for name in kinds}
    goodput, always = engine.controller, FixedController(6)
    times: dict[str, list[float]] = {name: [] for name in kinds}
    seen: dict[str, list[Any]] = {name: [] for name in kinds}
    texts = {category: text for category, (text,) in prompts(1).items() if category in CATEGORIES}
    for turn, (category, text) in product(range(chosen.rounds + 1), texts.items()):
        if turn and time.monotonic() > chosen.end:
            print("time is up", flush=True)
            break
        answers: dict[str, Any] = {}
        for name in kinds:
            engine.drafter = known[name]
            engine.controller = always if name == "layerskip_always" else goodput
            spent, answers[name] = seconds(engine, text, drafting=known[name] is not None, tokens=chosen.tokens)
            if turn:  # the first round warms all of them up
                times[name].append(spent)
                seen[name].append(answers[name])
        assert len({tuple(answer.token_ids) for answer in answers.values()}) == 1, f"{category}: the texts differ"
        print(turn, category, {name: round(found[-1], 2) for name, found in times.items() if found}, flush=True)
    over = {name: as_dict(ratio(times["plain"], times[name])) for name in kinds if name != "plain"}
    return {
        "skip": skip,
        "over_plain_speed": over,
        "acceptance_length": {name: mean_length(answers) for name, answers in seen.items() if name != "plain"},
        "drafted_by_the_model": {name: share(answers) for name, answers in seen.items() if name != "plain"},
    }


def mean_length(answers: list[Any]) -> float:
    return round(float(np.mean([answer.speculation.acceptance_length for answer in answers])), 3)


def share(answers: list[Any]) -> float:
    """The share of tokens that came from layer skipping."""
    tokens = [source for answer in answers for _, source in answer.pieces]
    return round(tokens.count("layerskip") / len(tokens), 3)


def memory(engine: Engine, skip: str) -> Mapping[str, Any]:
    from sooner.draft.layerskip import parse_skip

    weights = engine.target.plan.weights  # type: ignore[attr-defined] # the OpenVINO target has a plan
    taken = measure_memory(engine.target, parse_skip(skip))  # type: ignore[arg-type] # and sublayers
    return {"weights_mb": weights / 2**20, "further_private_mb": None if taken is None else taken / 2**20}


def redundant(chosen: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as nowhere:
        path = (chosen.folder or Path(nowhere)) / "deepened.gguf"
        if not path.exists():
            deepen(default_gguf(offline=False, say=print), path)
        engine = sooner.load(str(path), draft=None, pool_tokens=4096)
    layers = 30 * (INSERTED + 1)
    skip = "+".join(f"{first + 1}-{first + INSERTED}" for first in range(0, layers, INSERTED + 1))
    found = compare(engine, skip, ("plain", "layerskip_always", "layerskip"), chosen)
    return {"inserted": INSERTED, "part": PART, "layers": layers, **found, **memory(engine, skip)}


def default(chosen: argparse.Namespace) -> dict[str, Any]:
    engine = sooner.load(None, draft=None, pool_tokens=8192)
    items = [Item(name, name, text) for name, (text,) in prompts(1, evaluation_only=False).items()]
    report = search_skips(engine, items, chosen.seconds)
    print(report)
    kinds = ("plain", "model_free", "with_layerskip", "layerskip")
    found = compare(engine, report.found.text, kinds, chosen)
    return {"search": report.to_dict(), "says": str(report), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("redundant", "default"))
    parser.add_argument("--folder", type=Path, help="where the deepened model is kept (default: nowhere)")
    parser.add_argument("--seconds", type=int, default=60, help="how long to search")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--minutes", type=float, default=3.5, help="after which no further prompt is begun")
    parser.add_argument("--dry-run", action="store_true", help="show the result without keeping it")
    chosen = parser.parse_args()
    chosen.end = time.monotonic() + 60 * chosen.minutes
    result = (redundant if chosen.which == "redundant" else default)(chosen)
    print(result)
    if not chosen.dry_run:
        keep(f"layerskip-{chosen.which}", result)


if __name__ == "__main__":
    main()
