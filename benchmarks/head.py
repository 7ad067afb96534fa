"""A trained head as it runs, beside its target: acceptance by position on rows it was not trained on, and what a guess
takes with the processor's caches warm and as a pass of the target leaves them.

``python benchmarks/head.py HEAD ROWS``: a head's folder, and a folder of held-out rows (``held-out`` of a training
folder). Beside the model-free drafters: ``sooner bench FILE --config cascade --config
suffix+recycle+table+kind=head,path=HEAD``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from common import keep

import sooner
from sooner.control.cost import CostCurve
from sooner.store import resolve
from sooner.store.head_file import read_head
from sooner.targets.openvino.head import OpenVINOHead
from sooner.train.judge import judge_head
from sooner.train.rows import read_rows, shards

_ELSEWHERE = 40_000_000
"""Floats that are written between two guesses of the cold measurement: several times what the caches hold."""


def main() -> None:
    """Judge a head, time it, and keep both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("head", type=Path)
    parser.add_argument("rows", type=Path)
    given = parser.parse_args()
    file = read_head(given.head)
    head = OpenVINOHead(file, resolve().xml)
    curve = sooner.load(draft=["suffix"]).cost
    assert isinstance(curve, CostCurve), "the default model's passes are measured at load"
    passages = [passage for path in shards(given.rows) for passage in read_rows(path)]
    found = asdict(judge_head(head, passages, curve))
    found |= {"made": dict(file.made), "ms": {"warm": _times(head, cold=False), "cold": _times(head, cold=True)}}
    print(found)
    print(keep("head", found), file=sys.stderr)


def _times(head: OpenVINOHead, *, cold: bool, rounds: int = 100) -> dict[str, float]:
    """Medians in ms of a step's first guess, over three new rows, and of the one that goes on from it."""
    rows = np.random.default_rng(0).normal(size=(3, head.shape.taps * head.shape.hidden)).astype(np.float32)
    session, elsewhere = head.open(), np.zeros(_ELSEWHERE if cold else 1, np.float32)
    times: dict[str, list[float]] = {"first": [], "next": []}
    for _ in range(rounds):
        elsewhere += 1.0
        begun = time.perf_counter()
        head.start([session], [rows], [[5] * len(rows)])
        between = time.perf_counter()
        head.extend([session], [7])
        times["first"].append(1e3 * (between - begun))
        times["next"].append(1e3 * (time.perf_counter() - between))
    return {name: statistics.median(values) for name, values in times.items()}


if __name__ == "__main__":
    main()
