"""``sooner doctor``: the arithmetic of what pays, the words for every verdict, and a quick run on the default model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sooner
from commandline import invoke
from sooner.cli.doctor import Diagnosis, break_even
from sooner.targets.openvino.memory import MemoryPlan
from sooner.targets.probe import Comparison, PassCost, RowVerdict

if TYPE_CHECKING:
    from sooner.store import ModelFiles


@given(rows=st.integers(2, 32), acceptance=st.floats(0.01, 0.99))
def test_break_even_inverts_the_expected_tokens_of_a_pass(rows: int, acceptance: float) -> None:
    tokens = (1 - acceptance**rows) / (1 - acceptance)
    found = break_even(rows, tokens)
    assert found is not None
    assert found == pytest.approx(acceptance, abs=1e-6)


def test_break_even_at_its_ends() -> None:
    assert break_even(4, 4.0) == 1.0
    assert break_even(4, 4.1) is None
    assert break_even(4, 1.0) == break_even(4, 0.9) == 0.0


def diagnosis(*, differing: int, controls: int) -> Diagnosis:
    return Diagnosis(
        machine={},
        model="m",
        fingerprint={},
        memory=MemoryPlan(1, 1, 1, 1, 1, 1, 1, 1, 1),
        rows=RowVerdict((Comparison("a", 9, differing, 0.1),), (Comparison("b", 9, controls, 0.1),)),
        costs=(PassCost(1, 1, 9, 10.0), PassCost(1, 4, 9, 15.0)),
    )


def test_the_guarantee_says_what_was_found() -> None:
    assert "token for token" in diagnosis(differing=0, controls=3).guarantee
    assert "did differ, so the check can see" in diagnosis(differing=0, controls=3).guarantee
    assert "nothing shows that the check is sharp" in diagnosis(differing=0, controls=0).guarantee
    assert "except where two tokens" in diagnosis(differing=1, controls=3).guarantee


def test_costs_are_in_plain_passes() -> None:
    plain, four = diagnosis(differing=0, controls=1).to_dict()["pass_costs"]
    assert (plain["ratio"], four["ratio"]) == (1.0, 1.5)
    assert 0 < four["break_even_acceptance"] < 0.5


def test_quickly_on_the_default_model(default_files: ModelFiles) -> None:
    result = invoke("doctor", "--quick", "--json", load=sooner.load)
    value = json.loads(result.out)
    assert result.code == (0 if value["row_invariant"] else 1)
    assert value["checks"]
    assert value["negative_controls"]
    for context in (256, 1024):
        assert [cost["rows"] for cost in value["pass_costs"] if cost["context"] == context] == [1, 2, 4, 8, 16]
    assert value["memory"]["context"] > 0
