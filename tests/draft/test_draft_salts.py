"""What was learned from a sequence is never proposed to one of another salt, whichever drafter learned it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner.draft.cascade import CascadeDrafter
from sooner.draft.memory import MemoryDrafter
from sooner.draft.ngram import NgramDrafter
from sooner.draft.recycle import RecycleDrafter
from sooner.draft.suffix import SuffixDrafter
from sooner.protocols import Context, Drafter
from sooner.types import Draft
from test_engine_laws import PROMPTS
from toy import toy_engine

Shape = tuple[tuple[int, ...], tuple[int, ...]]


def everything() -> Drafter:
    return CascadeDrafter([SuffixDrafter(), NgramDrafter(), RecycleDrafter(), MemoryDrafter()])


class Leaky(CascadeDrafter):
    """Negative control: takes every sequence for one of the same salt."""

    def propose(self, contexts: Sequence[Context]) -> list[Draft]:
        return super().propose([replace(context, salt="") for context in contexts])


def proposed(drafter: Drafter, salt: str) -> list[Shape]:
    """What was drafted for one and the same request under ``salt``."""
    steps = toy_engine(drafter).stream(PROMPTS[0], max_tokens=30, ignore_eos=True, temperature=1.5, seed=1, salt=salt)
    return [(step.draft.tokens, step.draft.parents) for step in steps]


@pytest.mark.parametrize("make", [SuffixDrafter, NgramDrafter, RecycleDrafter, MemoryDrafter, everything])
@given(owners=st.lists(st.sampled_from(["", "a", "b", "a\0"]), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_to_a_new_salt_a_drafter_is_as_ignorant_as_a_new_one(make: Callable[[], Drafter], owners: list[str]) -> None:
    new, drafter = proposed(make(), ""), make()
    for at, salt in enumerate(owners):
        drafts = proposed(drafter, salt)
        if salt not in owners[:at]:
            assert drafts == new


@pytest.mark.parametrize("make", [RecycleDrafter, MemoryDrafter])
def test_a_leak_is_caught_and_within_a_salt_something_is_learned(make: Callable[[], Drafter]) -> None:
    new, kept, leaky = proposed(make(), ""), make(), Leaky([make()])
    assert proposed(kept, "a") == new != proposed(kept, "a")
    assert proposed(leaky, "a") == new != proposed(leaky, "b")
