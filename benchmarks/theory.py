"""The laws of speculative decoding beside the default model: results/theory-*.json, and docs/images/theory-*.

    python benchmarks/theory.py acceptance [--per-category N]      alpha by drafter and temperature; no time in it
    python benchmarks/theory.py lengths [--temperature T] [...]    every draft length against plain decoding, in turns
    python benchmarks/theory.py draw                               the plots (extra plots)

A run with --drafters A adds to, or replaces, what the result has of A: pieces by drafter make a whole. Measured:
Spec-Bench's evaluation prompts. The unigram and the bigram count what the model writes after other prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from common import RESULTS, SPEC_BENCH, keep

from sooner.bench.theory_plots import draw
from sooner.bench.theory_run import Lab
from sooner.bench.theory_study import LENGTHS, TEMPERATURES, study
from sooner.bench.workload import Item, for_evaluation, per_category, read_workload

IMAGES = Path(__file__).parents[1] / "docs" / "images"
DRAFTERS = ("unigram", "bigram", "ngram", "suffix", "recycle", "table", "layerskip:skip=20+24")
"""The last is the model without two of its thirty layers: a model as a drafter, with the price of one."""


def main() -> None:
    """One part."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("part", choices=["acceptance", "lengths", "draw"])
    parser.add_argument("--per-category", type=int, default=2, help="texts of each category")
    parser.add_argument("--category", action="append", default=[], help="only this category; may be given again")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the texts that are timed")
    parser.add_argument("--max-tokens", type=int, default=96, help="new tokens of each text")
    parser.add_argument("--drafters", nargs="+", default=list(DRAFTERS))
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    options = parser.parse_args()
    if options.part == "draw":
        drawn()
    else:
        measured(options)


def measured(options: argparse.Namespace) -> None:
    """Acceptance alone at all temperatures, or also the lengths at one."""
    import sooner

    items, training = prompts(options)
    engine = sooner.load(draft=None, warm=options.part == "lengths", max_running=1)
    lab = Lab(engine, sooner.Sampling(max_tokens=options.max_tokens, seed=1), training)
    lengths = options.part == "lengths"
    at = (options.temperature,)
    record = study(
        lab,
        options.drafters,
        items,
        gammas=options.lengths,
        temperatures=at if lengths else TEMPERATURES,
        timed=at if lengths else (),
        say=lambda message: print(message, file=sys.stderr),
    )
    name = f"theory-lengths-t{options.temperature:g}" if lengths else "theory-acceptance"
    print(keep(name, merged(RESULTS / f"{name}.json", record)))


def merged(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """``record`` and what the file has of other drafters, if it is of the same texts on the same machine."""
    record = {key: value for key, value in record.items() if key != "machine"}
    if not path.is_file():
        return record
    before = json.loads(path.read_text(encoding="utf-8"))
    if any(before[key] != record[key] for key in ("fingerprint", "model", "texts", "max_tokens")):
        return record
    for part in ("acceptance", "lengths", "best"):
        new = {(row["drafter"], row["temperature"]) for row in record[part]}
        kept = [row for row in before[part] if (row["drafter"], row["temperature"]) not in new]
        record[part] = [*kept, *record[part]]
    return record


def prompts(options: argparse.Namespace) -> tuple[list[Item], list[Item]]:
    """What is measured, and what is counted."""
    everything = read_workload(str(SPEC_BENCH))
    kept = per_category(for_evaluation(everything), options.per_category)
    held_out = {item.id for item in for_evaluation(everything)}
    others = per_category([item for item in everything if item.id not in held_out], 1)
    wanted = options.category or list(kept)
    return [item for name in wanted for item in kept[name]], [item for group in others.values() for item in group]


def drawn() -> None:
    """Plots of whatever results there are."""
    record: dict[str, Any] = {"acceptance": [], "lengths": []}
    for path in sorted(RESULTS.glob("theory-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        record["lengths"] += found["lengths"]
        if path.stem == "theory-acceptance":
            record["acceptance"] = found["acceptance"]
    for path in draw(record, IMAGES):
        print(path)


if __name__ == "__main__":
    main()
