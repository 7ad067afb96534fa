"""The layer-skipping drafter on a toy target: texts stay, drafts are as deep as pays, skip sets are read strictly."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from short_toy import LAYERS, ShortToy, SkippableToy
from sooner.control.fixed import FixedController
from sooner.draft import create_drafter
from sooner.draft.layerskip import LayerSkipDrafter, format_skip, parse_skip
from sooner.draft.thrift import Thrift
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.targets.toy import ToyTarget
from toy import ToyCodec, V

PROMPTS = [[1, 2, 3], [4] * 9, [5, 6], [7, 8, 9, 10, 11, 1, 2], [3]]


def engine_with(
    skip: str = "1+3a", *, budget: int = 4, pool: int | None = None, **options: Any
) -> tuple[Engine, ShortToy]:
    target = SkippableToy(V, context=60, pool_tokens=pool)
    given: dict[str, Any] = {"thrifty": False, "eos_ids": (0,)} | options
    drafter = LayerSkipDrafter(target, skip=skip, **given)
    engine = Engine(target, ToyCodec(), drafter=drafter, controller=FixedController(budget), max_running=3)
    return engine, target.short


def plain_engine() -> Engine:
    return Engine(SkippableToy(V, context=60), ToyCodec(), controller=FixedController(0), max_running=3)


@given(
    layers=st.sets(st.integers(0, LAYERS - 1), min_size=1),
    half=st.sampled_from(["", "a", "m"]),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    budget=st.integers(0, 7),
    width=st.integers(1, 3),
    pool=st.sampled_from([None, 60, 100]),
    thrifty=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=80, deadline=None)
def test_no_skip_set_changes_a_text(
    *,
    layers: set[int],
    half: str,
    temperature: float,
    budget: int,
    width: int,
    pool: int | None,
    thrifty: bool,
    seed: int,
) -> None:
    options: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": 30, "logprobs": 1}
    options |= {"repetition_penalty": 1.2 if seed % 2 else 1.0, "min_tokens": seed}
    want = plain_engine().generate_many(PROMPTS, **options)
    skip = "+".join(f"{layer}{half}" for layer in layers)
    engine, short = engine_with(skip, budget=budget, pool=pool, width=width, thrifty=thrifty)
    got = engine.generate_many(PROMPTS, **options)
    assert [(c.token_ids, c.logprobs, c.finish) for c in got] == [(c.token_ids, c.logprobs, c.finish) for c in want]
    assert engine.warning is None
    assert not short.sessions, "a sequence that ended left its session behind"


def test_drafts_are_mostly_right_and_given_back() -> None:
    engine, short = engine_with("3a", budget=4)
    done = engine.generate([1, 2, 3], temperature=0.8, seed=3, max_tokens=40, ignore_eos=True)
    assert done.speculation.acceptance_rate > 0.5
    assert short.released >= done.speculation.drafts > 5
    assert set(done.token_ids) != {done.token_ids[0]}


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_ratio_rules_get_sampled_drafts(rule: Any) -> None:
    engine, _ = engine_with("3a", budget=4, max=3, width=2)
    handle = engine.submit(
        engine.request([1, 2, 3], temperature=0.9, seed=5, max_tokens=40, ignore_eos=True, verify=rule)
    )
    steps = list(engine.follow(handle))
    assert engine.warning is None
    drafted = [step for step in steps if len(step.draft)]
    assert drafted
    assert all(step.draft.q for step in drafted)
    assert sum(step.accepted for step in drafted) > 10


def test_without_a_lender_nothing_is_drafted_or_read() -> None:
    engine, short = engine_with()
    short.lending = False
    done = engine.generate([1, 2, 3], max_tokens=20, ignore_eos=True)
    assert done.speculation.drafted == 0
    assert short.passes == 0
    assert len(done.token_ids) == 20


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("layerskip", "sooner tune --layerskip"),
        ("layerskip:skip=9", "no such sublayer"),
        ("layerskip:skip=3-1", "cannot read"),
        ("layerskip:skip=3q", "cannot read"),
        ("layerskip:skip=1+", "cannot read"),
        ("layerskip:skip=1,max=0", "max must be"),
        ("layerskip:skip=1,width=0", "width must be"),
    ],
)
def test_bad_options_are_refused(spec: str, message: str) -> None:
    with pytest.raises(DraftError, match=message) as caught:
        create_drafter(spec, target=SkippableToy(V), eos_ids=(0,))
    assert "\n" not in str(caught.value)


def test_a_target_without_layers_is_refused() -> None:
    with pytest.raises(DraftError, match="OpenVINO"):
        create_drafter("layerskip:skip=1", target=ToyTarget(V))


def test_the_tuned_set_is_used_where_none_is_named() -> None:
    target = SkippableToy(V)
    create_drafter("layerskip", target=target, tuned_skip=lambda: "1-2+4m")
    assert target.short.left_out == {"1a", "1m", "2a", "2m", "4m"}


NAMES = st.sets(
    st.tuples(st.integers(0, 40), st.sampled_from("am")).map(lambda pair: f"{pair[0]}{pair[1]}"), min_size=1
)


@given(names=NAMES)
def test_a_skip_set_survives_being_written_down(names: set[str]) -> None:
    assert parse_skip(format_skip(names)) == names


def test_a_skip_set_is_written_short() -> None:
    assert format_skip(parse_skip("5+6+7+8+12m+2a+3a")) == "2-3a+5-8+12m"


def pays(acceptance: float, level_ms: float, pass_ms: float, steps: int = 400, most: int = 6) -> tuple[int, int]:
    """Levels drafted in the first and in the second half of ``steps`` steps of a text that accepts that often."""
    rng = np.random.default_rng(0)
    thrift = Thrift(most)
    drafted = [0, 0]
    for step in range(steps):
        depth = thrift.depth()
        drafted[step * 2 // steps] += depth
        thrift.drafted(depth, depth * level_ms)
        hits = 0
        while hits < depth and rng.random() < acceptance:
            hits += 1
        if depth:
            thrift.learn(hits, min(hits + 1, depth))
        thrift.passed(hits + 1, pass_ms + depth * level_ms, pass_ms)
    return drafted[0], drafted[1]


def test_what_costs_as_much_as_a_pass_is_left_alone() -> None:
    first, second = pays(acceptance=0.83, level_ms=9.3, pass_ms=10.0)
    assert second <= 2
    assert first + second < 400 * 0.03


def test_what_is_cheap_and_right_is_drafted_deep() -> None:
    assert pays(acceptance=0.95, level_ms=1.0, pass_ms=10.0)[1] > 200 * 5


def test_what_is_cheap_and_wrong_is_left_alone() -> None:
    assert pays(acceptance=0.02, level_ms=2.0, pass_ms=10.0)[1] <= 20


def test_depth_grows_with_acceptance() -> None:
    depths = [pays(acceptance, 2.5, 10.0)[1] / 200 for acceptance in (0.5, 0.75, 0.95)]
    assert depths == sorted(depths)
    assert depths[0] < 2 < depths[2]


def test_a_thrifty_drafter_stops_when_it_is_wrong() -> None:
    engine, short = engine_with("0-5", thrifty=True, budget=6)
    engine.generate([1, 2, 3], max_tokens=50, ignore_eos=True)
    busy, busy_short = engine_with("0-5", thrifty=False, budget=6)
    busy.generate([1, 2, 3], max_tokens=50, ignore_eos=True)
    assert short.passes < busy_short.passes / 2


def test_what_the_shortened_graph_takes_is_said() -> None:
    said: list[str] = []
    LayerSkipDrafter(SkippableToy(V, context=60), skip="1+3a", say=said.append)
    assert said == ["memory: the model without 1+3a takes up to 3 MB besides the target, no cache of its own"]
