"""Nothing changes a token or a bit: the invariance law on the default model over a stratified grid.

Factors: 39 prompts (3 of each Spec-Bench category), temperature 0 and 0.8, seven drafters, budgets 1..12, alone and in
batches of 4, each run against the plain text of its prompt alone. Groups are chosen so that every pair of factor levels
occurs; a part of the runs is preempted by force in mid-text, and every text crosses block edges.

    python benchmarks/invariance.py [--runs 900] [--tokens 96]
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common import keep, prompts

import sooner
from sooner.control.fixed import FixedController
from sooner.draft import create_drafter
from sooner.draft.oracle import OracleDrafter
from sooner.engine import Engine
from sooner.protocols import Drafter

DRAFTERS = ("none", "ngram", "suffix", "given", "random", "oracle-wrong", "self")
TEMPERATURES = (0.0, 0.8)
BUDGETS = tuple(range(1, 13))
BLOCK = 32


@dataclass(frozen=True)
class Group:
    """Runs that share a pass: one drafter and budget, one or four texts."""

    drafter: str
    budget: int
    texts: tuple[tuple[int, float], ...]
    preempt_at: int | None

    def pairs(self) -> set[tuple[Any, ...]]:
        """Every pair of factor levels that the group's runs cover."""
        found: set[tuple[Any, ...]] = set()
        for prompt, temperature in self.texts:
            levels = (
                ("prompt", prompt),
                ("temperature", temperature),
                ("drafter", self.drafter),
                ("budget", self.budget),
                ("batch", len(self.texts)),
            )
            found.update(itertools.combinations(levels, 2))
        return found


def design(runs: int, n_prompts: int, seed: int = 0) -> list[Group]:
    """Groups until ``runs`` texts are planned and every pair of levels is covered; greedy over random candidates."""
    rng = random.Random(seed)
    everything = list(itertools.product(range(n_prompts), TEMPERATURES))
    wanted = set().union(
        *(
            Group(d, b, (text,) * size, None).pairs()
            for d in DRAFTERS
            for b in BUDGETS
            for text in everything
            for size in (1, 4)
        )
    )
    groups: list[Group] = []
    planned = 0
    while planned < runs or wanted:
        candidates = []
        for _ in range(40):
            size = rng.choice((1, 4, 4, 4))
            texts = tuple(rng.choice(everything) for _ in range(size))
            preempt = rng.randrange(2, 30) if rng.random() < 0.25 else None
            candidates.append(Group(rng.choice(DRAFTERS), rng.choice(BUDGETS), texts, preempt))
        best = max(candidates, key=lambda g: len(g.pairs() & wanted))
        wanted -= best.pairs()
        groups.append(best)
        planned += len(best.texts)
    return groups


def make_drafter(name: str, engine: Engine, truth: dict[tuple[int, ...], Sequence[int]]) -> Drafter | None:
    """The drafter of one group."""
    match name:
        case "none":
            return None
        case "oracle-wrong":
            return OracleDrafter(truth, max=12, error_at=0)
        case _:
            return create_drafter({"kind": name, "max": 12}, target=engine.target, vocab_size=engine.target.vocab_size)


def main() -> None:
    """Run the grid and keep the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=900)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--per-category", type=int, default=3)
    arguments = parser.parse_args()
    engine = sooner.load(draft=None)
    texts = [p for group in prompts(arguments.per_category, evaluation_only=False).values() for p in group]
    options: dict[str, Any] = {"seed": 7, "max_tokens": arguments.tokens, "ignore_eos": True, "logprobs": 2}
    started = time.monotonic()
    plain = {
        (i, t): engine.generate(text, temperature=t, **options) for i, text in enumerate(texts) for t in TEMPERATURES
    }
    prompt_ids = {i: engine.request(text).prompt for i, text in enumerate(texts)}
    counts = {"runs": 0, "tokens": 0, "differing_ids": 0, "differing_logprobs": 0, "preempted": 0, "groups": 0}
    differences = []
    for group in design(arguments.runs, len(texts)):
        truth: dict[tuple[int, ...], Sequence[int]] = {}  # two temperatures of one prompt never share a group's oracle
        for i, t in group.texts:
            truth.setdefault(prompt_ids[i], plain[i, t].token_ids)
        engine.drafter = make_drafter(group.drafter, engine, truth)
        engine.controller = FixedController(group.budget)
        handles = [
            engine.submit(engine.request(texts[i], temperature=t, expected=plain[i, t].text, **options))
            for i, t in group.texts
        ]
        before = engine.batch.preemptions
        for step in itertools.count():
            if step == group.preempt_at:
                engine.batch.preempt()
            engine.step()
            if all(handle.finished for handle in handles):
                break
        for (i, t), handle in zip(group.texts, handles, strict=True):
            answer, want = engine.completion(handle), plain[i, t]
            counts["runs"] += 1
            counts["tokens"] += len(want.token_ids)
            bad_ids = answer.token_ids != want.token_ids
            bad_bits = answer.logprobs != want.logprobs
            counts["differing_ids"] += bad_ids
            counts["differing_logprobs"] += bad_bits
            counts["preempted"] += engine.batch.preemptions > before
            if bad_ids or bad_bits or (answer.speculation.warning and group.drafter not in ("random", "oracle-wrong")):
                differences.append({"group": str(group), "prompt": i, "warning": answer.speculation.warning})
        counts["groups"] += 1
        if counts["groups"] % 25 == 0:
            print(counts, f"{time.monotonic() - started:.0f} s", flush=True)
    engine.drafter = None
    result = {**counts, "block_edges_per_text": arguments.tokens // BLOCK, "notes": differences[:20]}
    keep("invariance", {"fingerprint": dict(engine.fingerprint), **result})
    print(result)
    raise SystemExit(1 if counts["differing_ids"] or counts["differing_logprobs"] else 0)


if __name__ == "__main__":
    main()
