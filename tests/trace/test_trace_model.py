"""The trace law on the real default model: it proves its own text, and catches a flipped token, at any temperature."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from recording import record, steps_of

import sooner
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.loading import make_drafter
from sooner.trace.proof import prove

PROMPT = "Repeat exactly: the quick brown fox jumps over the lazy dog, 한국어 too."
OPTIONS: dict[str, Any] = {"max_tokens": 40, "seed": 11, "logprobs": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return sooner.load(draft=None, pool_tokens=2048)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_model_proves_its_text_and_catches_a_flipped_token(engine: Engine, temperature: float) -> None:
    engine.drafter = make_drafter(["suffix", "recycle"], engine.target, engine.codec, "")
    engine.controller = FixedController(6)
    prompt = engine.request(PROMPT).prompt
    records = record(engine, prompt, temperature=temperature, **OPTIONS)
    assert any(step["path"] for step in steps_of(records))
    assert records[0]["cost"]["ms"]
    assert records[-1]["plain_ms"] > 0
    for steps in (False, True):
        proof = prove(engine, records[0], steps_of(records), steps=steps)
        assert (proof.mismatch, proof.checked) == (None, 40)
    assert prove(engine, records[0], steps_of(records)).passes == 2
    flipped = copy.deepcopy(steps_of(records))
    flipped[-1]["tokens"][-1] ^= 1
    mismatch = prove(engine, records[0], flipped).mismatch
    assert mismatch is not None
    assert (mismatch.what, mismatch.position, mismatch.recorded) == ("token", 39, flipped[-1]["tokens"][-1])
