"""Which replica a conversation prefers: the same one turn after turn, few moved by a change, load before all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sooner.integrations.ray_affinity import affinity_key, ranked

NAMES = st.sets(st.text("abcdef0123456789", min_size=4, max_size=8), min_size=1, max_size=9)
KEYS = st.text("0123456789abcdef", min_size=1, max_size=8)


def key(authorization: bytes = b"", **body: Any) -> str:
    return affinity_key(authorization, json.dumps(body).encode())


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_conversation_keeps_its_key_and_differs_from_others() -> None:
    first = [turn("system", "Be brief."), turn("user", "Why is the sky blue?")]
    later = [*first, turn("assistant", "Scattering."), turn("user", "And at dusk?")]
    assert key(messages=first) == key(messages=later, temperature=0.5)
    others = (
        key(messages=[first[0], turn("user", "Why is grass green?")]),
        key(messages=[turn("system", "Be long."), first[1]]),
        key(b"Bearer other", messages=first),
        key(messages=first, user="me"),
        key(messages=first, cache_salt="s"),
    )
    assert len({key(messages=first), *others}) == 1 + len(others)


def test_salt_comes_before_user_and_user_before_words() -> None:
    assert key(messages=[turn("user", "a")], user="me") == key(messages=[turn("user", "b")], user="me")
    assert key(prompt="a", user="me", cache_salt="s") == key(prompt="b", user="you", cache_salt="s")


def test_a_continued_prompt_keeps_its_key() -> None:
    text = "Once upon a time there was a house with a hundred doors, and behind every one of them lived somebody who "
    text = text * 2
    assert key(prompt=text) == key(prompt=text + "never came out.")
    assert key(prompt=list(range(200))) == key(prompt=list(range(300)))
    assert key(prompt="a") != key(prompt="b")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", b"null", b"{}", b"\xff\xfe", b'{"messages": 3}', b"[" * 10**5]
)
def test_what_says_nothing_has_no_key(body: bytes) -> None:
    assert affinity_key(b"", body) == ""


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_whatever_the_messages_are_nothing_is_raised(messages: Any) -> None:
    key(messages=messages, prompt=messages, user=messages)


@given(KEYS, NAMES)
def test_each_replica_is_asked_once_and_the_order_is_the_keys_own(one: str, names: set[str]) -> None:
    idle = dict.fromkeys(names, 0)
    assert sorted(ranked(one, idle)) == sorted(names)
    assert ranked(one, idle) == ranked(one, dict.fromkeys(sorted(names), 0), places=8, slack=5)


@given(KEYS, NAMES, st.text("ghij", min_size=4, max_size=4))
def test_a_replica_more_moves_only_what_it_gets(one: str, names: set[str], new: str) -> None:
    before, after = ranked(one, dict.fromkeys(names, 0)), ranked(one, dict.fromkeys([*names, new], 0))
    assert [name for name in after if name != new] == before


def test_keys_are_spread_evenly() -> None:
    names = [f"replica-{i}" for i in range(4)]
    homes = [ranked(f"conversation-{i}", dict.fromkeys(names, 0))[0] for i in range(2000)]
    assert all(abs(homes.count(name) - 500) < 100 for name in names)  # five deviations


def hashed_modulo(one: str, names: list[str]) -> str:
    return sorted(names)[sum(one.encode()) % len(names)]


def test_the_law_would_catch_a_plain_hash() -> None:
    names = [f"replica-{i}" for i in range(4)]
    keys = [f"conversation-{i}" for i in range(400)]
    moved = sum(hashed_modulo(one, names) != hashed_modulo(one, [*names, "replica-9"]) for one in keys)
    ours = sum(
        ranked(one, dict.fromkeys(names, 0))[0] != ranked(one, dict.fromkeys([*names, "replica-9"], 0))[0]
        for one in keys
    )
    assert ours < 400 * 0.3 < moved


LOADS = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(0, 40), min_size=1)


@given(KEYS, LOADS, st.integers(0, 16), st.integers(0, 9))
def test_a_full_replica_with_a_much_longer_queue_loses_its_preference(
    one: str, loads: dict[str, int], places: int, slack: int
) -> None:
    order = ranked(one, loads, places=places, slack=slack)
    late = [name for name in order if loads[name] >= places and loads[name] > min(loads.values()) + slack]
    assert order[0] not in late
    assert order[len(order) - len(late) :] == late
    assert [loads[name] for name in late] == sorted(loads[name] for name in late)
    home = ranked(one, dict.fromkeys(loads, 0))[0]
    assert (order[0] == home) == (home not in late)


def test_without_replicas_there_is_none_to_ask() -> None:
    assert ranked("key", {}, places=3) == []
