"""The trace law: steps applied again from their recorded rows are the recorded steps, byte for byte; a text decoded
again is the recorded one; and what was tampered with is found."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Record, TapeRecorder, record, steps_of

from sooner.constraint import compile_constraint
from sooner.draft.self import SelfDrafter
from sooner.errors import InvalidRequest
from sooner.targets.toy import ToyTarget
from sooner.trace.proof import prove
from sooner.trace.replay import Scored, replay, request_of
from sooner.types import Rows, Step
from toy import ToyCodec, TreeDrafter, V, toy_engine
from toy_json import V as JSON_V
from toy_json import json_engine

OPTIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**64 - 1),
        "max_tokens": st.integers(1, 40),
        "temperature": st.sampled_from([0.0, 0.7, 1.3]),
        "n": st.integers(1, 3),
    },
    optional={
        "top_p": st.sampled_from([0.6, 0.95]),
        "top_k": st.integers(1, 9),
        "repetition_penalty": st.sampled_from([1.3]),
        "frequency_penalty": st.sampled_from([0.5]),
        "logit_bias": st.dictionaries(st.integers(1, V - 1), st.floats(-5, 5), max_size=2),
        "logprobs": st.integers(0, 3),
        "stop": st.sampled_from([("ab",), ("é", "stop")]),
        "ignore_eos": st.just(True),
        "verify": st.sampled_from(["rejection", "block", "typical:epsilon=0.1"]),
    },
)
ALTERNATIVES = st.one_of(st.none(), st.integers(0, 4))


def taped(seed: int, options: dict[str, Any], alternatives: int | None) -> tuple[list[Record], TapeRecorder]:
    sampled = options.get("verify", "coupled") in ("rejection", "block") and seed % 2
    inner = SelfDrafter(ToyTarget(V, seed=1)) if sampled else TreeDrafter(seed)
    drafter = TapeRecorder(inner)
    engine = toy_engine(drafter, flicker=True, context=96)
    return record(engine, [1, 2, 3], alternatives=alternatives, **options), drafter


def lines(records: list[Record]) -> list[str]:
    return [json.dumps(one) for one in records]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), OPTIONS, ALTERNATIVES)
def test_replaying_reproduces_every_step_byte_for_byte(
    seed: int, options: dict[str, Any], alternatives: int | None
) -> None:
    records, drafter = taped(seed, options, alternatives)
    steps = steps_of(records)
    assert len(steps) >= 1
    assert lines(list(replay(records[0], steps, drafter.tape, ToyCodec()))) == lines(steps)


def test_a_preempted_text_replays_too() -> None:
    drafter = TapeRecorder(TreeDrafter(5))
    engine = toy_engine(drafter, context=96, pool_tokens=100)
    records = record(engine, [1, 2, 3], max_tokens=40, n=3, temperature=1.0, seed=3, ignore_eos=True)
    assert engine.batch.preemptions
    steps = steps_of(records)
    assert lines(list(replay(records[0], steps, drafter.tape, ToyCodec()))) == lines(steps)


def test_a_constrained_text_replays_too() -> None:
    drafter = TapeRecorder(TreeDrafter(1, vocab_size=JSON_V))
    engine = json_engine(drafter)
    grammar = compile_constraint("regex", "(ab)+c(cd|abc){9}", engine.codec)
    records = record(engine, [3], max_tokens=30, temperature=1.0, seed=2, constraint=grammar)
    assert sum(len(step["path"]) for step in steps_of(records)) > 3
    again = replay(records[0], steps_of(records), drafter.tape, engine.codec)
    assert lines(list(again)) == lines(steps_of(records))
    for steps in (False, True):
        proof = prove(json_engine(), records[0], steps_of(records), steps=steps)
        assert (proof.mismatch, proof.checked) == (None, sum(len(step["tokens"]) for step in steps_of(records)))


def test_a_sampled_draft_replays_with_its_rows_and_says_its_chances() -> None:
    records, drafter = taped(1, {"verify": "block", "temperature": 1.0, "seed": 8, "max_tokens": 30}, 2)
    steps = steps_of(records)
    sampled = [step for step in steps if step["draft"]["sampled"]]
    assert all(0 < q <= 1 for step in sampled for q in step["draft"]["q"])
    assert len(sampled) > 2
    assert lines(list(replay(records[0], steps, drafter.tape, ToyCodec()))) == lines(steps)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.data())
def test_other_rows_or_another_record_are_noticed(seed: int, data: st.DataObject) -> None:
    """Negative control: one row disturbed where it decides, or one token of the record flipped."""
    options = {"seed": seed, "max_tokens": 20, "temperature": 0.8, "ignore_eos": True}
    records, drafter = taped(seed, options, 2)
    steps = steps_of(records)
    victim = data.draw(st.integers(0, len(steps) - 1))

    def disturbed(step: Step) -> Scored:
        scored = drafter.tape(step)
        if step.index != victim:
            return scored
        logits = scored.rows.logits.copy()
        logits[0] = -np.inf
        logits[0, (steps[victim]["tokens"][0] + 1) % V] = 0.0
        return Scored(Rows(logits), scored.q)

    assert lines(list(replay(records[0], steps, disturbed, ToyCodec()))) != lines(steps)
    flipped = copy.deepcopy(steps)
    flipped[victim]["tokens"][-1] = (flipped[victim]["tokens"][-1] + 1) % V
    assert lines(list(replay(records[0], flipped, drafter.tape, ToyCodec()))) != lines(flipped)


# -- proof: the model itself decides again ---------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), OPTIONS, ALTERNATIVES, st.booleans())
def test_a_recorded_text_is_proven(seed: int, options: dict[str, Any], alternatives: int | None, steps: bool) -> None:
    options = {**options, "verify": "coupled"}
    records, _ = taped(seed, options, alternatives)
    proof = prove(toy_engine(context=96), records[0], steps_of(records), steps=steps)
    assert proof.mismatch is None
    assert proof.checked == sum(len(step["tokens"]) for step in steps_of(records))


def test_a_proof_takes_few_passes() -> None:
    records, _ = taped(0, {"max_tokens": 60, "temperature": 0.9, "seed": 4, "ignore_eos": True}, 3)
    proof = prove(toy_engine(context=96), records[0], steps_of(records))
    assert (proof.checked, proof.passes, proof.mismatch) == (60, 2, None)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.booleans(), st.sampled_from([0.0, 0.9]), st.data())
def test_one_flipped_token_is_caught_and_named(seed: int, steps: bool, temperature: float, data: st.DataObject) -> None:
    """Negative control of the tests above."""
    records, _ = taped(seed, {"seed": seed, "max_tokens": 30, "temperature": temperature, "n": 2}, 3)
    recorded = copy.deepcopy(steps_of(records))
    victim = data.draw(st.sampled_from(recorded))
    at = data.draw(st.integers(0, len(victim["tokens"]) - 1))
    before = [one for one in recorded if one["choice"] == victim["choice"] and one["index"] < victim["index"]]
    truth = victim["tokens"][at]
    victim["tokens"][at] = (truth + 1) % V
    mismatch = prove(toy_engine(context=96), records[0], recorded, steps=steps).mismatch
    assert mismatch is not None
    position = sum(len(one["tokens"]) for one in before) + at
    assert (mismatch.choice, mismatch.position, mismatch.what) == (victim["choice"], position, "token")
    assert (mismatch.recorded, mismatch.found) == ((truth + 1) % V, truth)


def test_another_text_chance_or_end_is_caught() -> None:
    records, _ = taped(0, {"seed": 3, "max_tokens": 12, "temperature": 0.9, "logprobs": 1}, 3)

    def found(change: Any, *, steps: bool) -> str:
        changed = copy.deepcopy(steps_of(records))
        change(changed)
        mismatch = prove(toy_engine(context=96), records[0], changed, steps=steps).mismatch
        return "" if mismatch is None else mismatch.what

    def retold(steps: list[Record]) -> None:
        steps[1]["text"] += "x"

    def surer(steps: list[Record]) -> None:
        steps[1]["p"][0] /= 2

    def otherwise(steps: list[Record]) -> None:
        steps[-1]["finish"] = {"reason": "stop", "detail": "x"}

    def cut(steps: list[Record]) -> None:
        steps[-1]["finish"] = None
        del steps[-1]["tokens"][-1:], steps[-1]["sources"][-1:]

    assert found(retold, steps=False) == "text"
    assert found(retold, steps=True) == "text"
    assert found(surer, steps=True) == "p"
    assert found(surer, steps=False) == ""
    assert found(otherwise, steps=False) == "finish"
    assert found(cut, steps=False) == ""


def test_another_model_or_seed_is_caught() -> None:
    records, _ = taped(0, {"seed": 3, "max_tokens": 30, "temperature": 0.9}, 3)
    assert prove(toy_engine(context=96, seed=1), records[0], steps_of(records)).mismatch is not None
    assert prove(toy_engine(context=96), {**records[0], "seed": 4}, steps_of(records)).mismatch is not None
    longer = {**records[0], "sampling": {**records[0]["sampling"], "max_tokens": 31}}
    mismatch = prove(toy_engine(context=96), longer, steps_of(records)).mismatch
    assert mismatch is None or mismatch.what == "finish"


def test_what_cannot_be_proven_is_refused() -> None:
    records, _ = taped(0, {"seed": 3, "max_tokens": 9, "temperature": 0.9}, 3)
    header, steps = records[0], steps_of(records)
    sampling = header["sampling"]
    refused: dict[str, Record] = {
        "lossy rule": {"sampling": {**sampling, "verify": "typical:epsilon=0.1"}},
        "does not determine": {"sampling": {**sampling, "verify": "block"}},
        "withholds its prompt": {"prompt": None},
        "withholds its grammar": {"constraint": {"kind": "regex", "source": None}},
        "not known here \\(magic\\)": {"sampling": {**sampling, "magic": 1}},
        "noise version 0": {"fingerprint": {"noise": "0"}},
        "sampling is none": {"seed": None},
        "no prompt or no sampling": {"sampling": 3},
    }
    for message, change in refused.items():
        with pytest.raises(InvalidRequest, match=message):
            prove(toy_engine(context=96), {**header, **change}, steps)
    with pytest.raises(InvalidRequest, match="no answer"):
        prove(toy_engine(context=96), header, [])
    with pytest.raises(InvalidRequest, match="no answer"):
        prove(toy_engine(context=96), header, [{**steps[0], "choice": 7}])
    greedy = {**header, "sampling": {**sampling, "temperature": 0.0, "verify": "block"}}
    assert prove(toy_engine(context=96), greedy, steps).mismatch is not None
    assert request_of(header, ToyCodec()).sampling.seed == 3
