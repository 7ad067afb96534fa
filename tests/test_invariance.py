"""The laws once more on the real default model: no drafter, budget, batch, preemption or cache hit changes a bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import sooner
from sooner.control.cost import CostCurve
from sooner.control.fixed import FixedController
from sooner.control.goodput import GoodputController
from sooner.draft import create_drafter
from sooner.draft.oracle import OracleDrafter
from sooner.engine import Engine
from sooner.loading import make_drafter
from sooner.protocols import Drafter
from sooner.types import Rows, Work
from test_engine_laws import visible
from toy import FlickerController

PROMPTS = [
    "Why is the sky blue?",
    "Write the word tea ten times.",
    "Repeat exactly: The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog.",
]
OPTIONS: dict[str, Any] = {"max_tokens": 66, "seed": 11, "logprobs": 2, "ignore_eos": True}
TEMPERATURES = (0.0, 0.8)
CURVE = CostCurve(rows=(2, 4, 8, 16), ms=(9.0, 9.5, 12.0, 17.0), branch_ms=0.6, refeed=1.0, change_ms=4.0)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return sooner.load(draft=None, pool_tokens=8192)


Plain = dict[tuple[int, float], sooner.Completion]


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Plain:
    engine.drafter = None
    return {(i, t): engine.generate(p, temperature=t, **OPTIONS) for i, p in enumerate(PROMPTS) for t in TEMPERATURES}


@pytest.fixture(autouse=True)
def _restore(engine: Engine) -> Iterator[None]:
    yield
    engine.drafter = None
    assert not engine.busy


def make(name: str, engine: Engine, truth: Mapping[tuple[int, ...], Sequence[int]]) -> Drafter | None:
    match name:
        case "none":
            return None
        case "oracle":
            return OracleDrafter(truth, max=12, rate=0.3)
        case "wrong":
            return OracleDrafter(truth, max=12, error_at=0)
        case "tree":
            return create_drafter("random:tree=true,max=10", vocab_size=engine.target.vocab_size)
        case "cascade":
            return make_drafter("cascade", engine.target, engine.codec, engine.target.fingerprint["model"])
        case _:
            return create_drafter(name, target=engine.target, vocab_size=engine.target.vocab_size)


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("none", 0),
        ("ngram", 5),
        ("suffix", 8),
        ("given", 12),
        ("random", 3),
        ("tree", 7),
        ("wrong", 6),
        ("self", 2),
        ("cascade", -1),
    ],
)
def test_drafts_and_mixed_batches_change_no_bit(engine: Engine, plain: Plain, name: str, budget: int) -> None:
    runs = list(plain)
    requests = [engine.request(PROMPTS[i], temperature=t, expected=plain[i, t].text, **OPTIONS) for i, t in runs]
    truth = {r.prompt: plain[run].token_ids for r, run in zip(requests, runs, strict=True)}
    engine.drafter = make(name, engine, truth)
    engine.controller = FixedController(budget) if budget >= 0 else GoodputController(CURVE)
    handles = [engine.submit(request) for request in requests]
    for handle, run in zip(handles, runs, strict=True):
        list(engine.follow(handle))
        assert visible(engine.completion(handle)) == visible(plain[run])
    if name in ("given", "self"):
        assert engine.completion(handles[0]).speculation.acceptance_length > 2


def test_preemption_flickering_budgets_and_cold_caches_change_no_bit(engine: Engine, plain: Plain) -> None:
    requests = [engine.request(p, temperature=0.8, **OPTIONS) for p in PROMPTS]
    engine.drafter = make("oracle", engine, {r.prompt: plain[i, 0.8].token_ids for i, r in enumerate(requests)})
    engine.controller = FlickerController(9, seed=5)
    handles = [engine.submit(request) for request in requests]
    before = engine.batch.preemptions
    for when in range(1000):
        if when in (3, 9, 17):
            engine.batch.preempt()
        engine.step()
        if all(handle.finished for handle in handles):
            break
    assert engine.batch.preemptions - before > 5
    for i, handle in enumerate(handles):
        assert visible(engine.completion(handle)) == visible(plain[i, 0.8])


def test_n_choices_fork_the_prompt_and_each_equals_its_own_seed(engine: Engine, plain: Plain) -> None:
    answer = engine.generate(PROMPTS[0], temperature=0.8, n=3, **OPTIONS)
    assert visible(answer)[:4] == visible(plain[0, 0.8])[:4]
    assert len({c.token_ids for c in answer.choices}) == 3
    assert answer.choices[1].usage.cached_tokens == answer.usage.prompt_tokens - 1


def test_the_check_would_see_a_row_that_depends_on_its_neighbours(engine: Engine, plain: Plain) -> None:
    """Negative control: one unit in the last place, added to drafted passes only, is found in the log-probabilities."""
    score = engine.target.score

    def nudged(works: Sequence[Work]) -> list[Rows]:
        drafted = any(len(work.draft) for work in works)
        return [Rows(np.nextafter(r.logits, np.float32(np.inf)) if drafted else r.logits) for r in score(works)]

    request = engine.request(PROMPTS[0], temperature=0.0, **OPTIONS)
    engine.drafter = OracleDrafter(plain[0, 0.0].token_ids)
    engine.controller = FixedController(4)
    engine.target.score = nudged  # type: ignore[method-assign]  # a target with a fault, without copying one
    try:
        handle = engine.submit(request)
        list(engine.follow(handle))
    finally:
        engine.target.score = score  # type: ignore[method-assign]
    assert engine.completion(handle).logprobs != plain[0, 0.0].logprobs


def test_the_fingerprint_and_seed_reproduce_a_text(engine: Engine) -> None:
    first = engine.generate("Tell me a story.", temperature=1.0, max_tokens=30)
    again = engine.generate("Tell me a story.", temperature=1.0, max_tokens=30, seed=first.seed)
    assert again.token_ids == first.token_ids
    assert {"model", "engine", "processor", "precision", "kv_precision", "noise"} <= set(first.fingerprint)
