"""What the benchmarks share: prompts, the model, and results that are kept with their machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sooner.bench import stamp

RESULTS = Path(__file__).parent / "results"
SPEC_BENCH = Path(__file__).parents[2] / "shared" / "data" / "spec_bench" / "question.jsonl"

REWRITE_CODE = """Rewrite this function with type hints and a docstring, and change nothing else:

def moving_average(values, window):
    if window <= 0:
        raise ValueError("window must be positive")
    if window > len(values):
        raise ValueError("window must not exceed the number of values")
    total = sum(values[:window])
    averages = [total / window]
    for index in range(window, len(values)):
        total += values[index] - values[index - window]
        averages.append(total / window)
    return averages
"""


def prompts(per_category: int, *, evaluation_only: bool = True) -> dict[str, list[str]]:
    """The first turns of Spec-Bench by category; evaluation-only ones have an id divisible by 5 or 7."""
    found: dict[str, list[str]] = {}
    for line in SPEC_BENCH.read_text(encoding="utf-8").splitlines():
        question = json.loads(line)
        number = question["question_id"]
        kept = found.setdefault(question["category"], [])
        if len(kept) < per_category and (number % 5 == 0 or number % 7 == 0 or not evaluation_only):
            kept.append(question["turns"][0])
    return found


def keep(name: str, result: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result with the stamp of this machine; committed, they are what the documentation cites."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": stamp(), **result}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
