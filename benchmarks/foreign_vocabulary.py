"""What a foreign vocabulary costs a draft model: acceptance against the same model with the target's vocabulary.

    python benchmarks/foreign_vocabulary.py [--kept 0.4 0.7] [--temperature 0 0.8] [--dry-run]

The target is the default model. The draft is a copy of it without two layers, whose tokenizer has lost the later part
of its merges with their tokens, the ids of the others shuffled: it reads and writes shorter tokens than it learned.
Texts are asserted to be plain decoding's. Nothing is timed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import keep, prompts
from draft_pairs import without
from gguf_files import rewrite

import sooner
from sooner.control.fixed import FixedController
from sooner.draft.model import ModelDrafter
from sooner.loading import open_model
from sooner.protocols import Target
from sooner.text import TextCodec

LEFT_OUT = (20, 24)
ROADS = ("auto", "tokens", "text")
DEPTH = 5


def foreign(source: Path, path: Path, kept: float) -> Path:
    """``source`` with the first ``kept`` of its merges, and its tokens in another order."""
    new: list[int] = []

    def fields(reader: Any) -> dict[str, Any]:
        prefix = "tokenizer.ggml."
        found = {name.removeprefix(prefix): field.contents() for name, field in reader.fields.items()}
        tokens, merges = found["tokens"], found["merges"]
        lost = {merge.replace(" ", "", 1) for merge in merges[int(kept * len(merges)) :]}
        kept_merges = [merge for merge in merges[: int(kept * len(merges))] if not lost & set(merge.split(" "))]
        new.extend(np.random.default_rng(0).permutation([i for i, token in enumerate(tokens) if token not in lost]))
        place = {int(old): i for i, old in enumerate(new)}
        lists = {f"{prefix}{name}": [found[name][old] for old in new] for name in ("tokens", "token_type")}
        ids = {f"{prefix}{name}": place[value] for name, value in found.items() if name.endswith("token_id")}
        return {"llama.vocab_size": len(new), f"{prefix}merges": kept_merges} | lists | ids

    return rewrite(
        source,
        path,
        fields,
        lambda tensor: [
            (tensor.name, tensor.data[new] if "blk" not in tensor.name and tensor.data.ndim > 1 else tensor.data)
        ],
    )


def made(engine: sooner.Engine, both: tuple[Target, TextCodec], road: str) -> ModelDrafter:
    return ModelDrafter(
        "",
        open_model=lambda path: both,
        target=engine.target,
        codec=engine.codec,
        max=DEPTH,
        width=1,
        vocabulary=road,
        thrifty=False,
    )


def written(engine: sooner.Engine, drafter: ModelDrafter | None, texts: list[str], **options: Any) -> Any:
    engine.drafter = drafter
    return engine.generate_many(texts, **options)


def accepted(answers: Any, plain: Any) -> float:
    """The share of tokens that were drafted, of texts that are asserted to be those without a draft."""
    assert [one.token_ids for one in answers] == [one.token_ids for one in plain], "the texts differ"
    return float(sum(one.speculation.accepted for one in answers) / sum(len(one.token_ids) for one in answers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=float, nargs="+", default=[0.4, 0.7])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--dry-run", action="store_true", help="show the result without keeping it")
    chosen = parser.parse_args()
    engine = sooner.load(None, draft=None, controller=FixedController(2 * DEPTH), pool_tokens=16384)
    texts = [text for kept in prompts(1).values() for text in kept]
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        own = without(LEFT_OUT, Path(folder) / "own.gguf")
        opened = {1.0: open_model(str(own), pool_tokens=16384)}
        for kept in chosen.kept:
            opened[kept] = open_model(str(foreign(own, Path(folder) / f"foreign{kept}.gguf", kept)), pool_tokens=16384)
    for temperature in chosen.temperature:
        options = {"temperature": temperature, "seed": 1, "max_tokens": chosen.tokens}
        plain, same = written(engine, None, texts, **options), 0.0
        for kept, both in opened.items():
            for road in ROADS if kept < 1.0 else ("same",):
                share = accepted(written(engine, made(engine, both, road), texts, **options), plain)
                same = share if kept == 1.0 else same
                runs.append(
                    {"temperature": temperature, "kept": kept, "road": road, "accepted": share, "of_same": share / same}
                )
                print({name: round(v, 3) if isinstance(v, float) else v for name, v in runs[-1].items()}, flush=True)
    if not chosen.dry_run:
        keep(
            "foreign-vocabulary",
            {"left_out": LEFT_OUT, "depth": DEPTH, "texts": len(texts), "tokens": chosen.tokens, "runs": runs},
        )


if __name__ == "__main__":
    main()
