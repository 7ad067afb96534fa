"""The invariance law under a grammar: constrained texts are what plain constrained decoding writes, bit for bit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import Model, Shape, chain_shape, chained_steps, random_model, sampler, total_variation
from sooner.completion import Completion
from sooner.constraint import CompiledConstraint, GrammarMatcher, compile_constraint
from sooner.constraint.matcher import Ids
from sooner.control.fixed import FixedController
from sooner.draft.forced import GRAMMAR, follow
from sooner.draft.random import RandomDrafter
from sooner.errors import InvalidRequest
from sooner.protocols import Coins, Context
from sooner.types import ROOT, Draft, Probabilities
from sooner.verify import create_verifier
from test_constraint import CONSTRAINTS, SCHEMA
from test_engine_laws import check_counts, check_free, visible
from toy import TreeDrafter
from toy_json import CODEC, PIECES, V, json_engine

PROMPTS = [[3, 4, 5], [6] * 9, [7, 8], [9, 10, 11, 12, 13, 3, 4]]

samplings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 4]),
        "top_p": st.sampled_from([1.0, 0.8]),
        "min_p": st.sampled_from([0.0, 0.05]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 2.0]),
        "logit_bias": st.sampled_from([{}, {5: 9.0, V - 1: 50.0}]),
        "min_tokens": st.sampled_from([0, 5]),
        "max_tokens": st.sampled_from([5, 17, 40]),
        "stop": st.sampled_from([(), ("cd",), ('"b"', "1")]),
        "bad_words": st.sampled_from([(), ("ab",)]),
        "ignore_eos": st.booleans(),
        "seed": st.integers(0, 3),
        "logprobs": st.sampled_from([None, 3]),
        "logprobs_mode": st.sampled_from(["raw", "processed"]),
    }
)
constraints = st.sampled_from(CONSTRAINTS)


def plain(constraint: CompiledConstraint, options: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [visible(json_engine().generate(prompt, constraint=constraint, **options)) for prompt in PROMPTS]


def truths(want: Sequence[tuple[Any, ...]]) -> dict[tuple[int, ...], list[int]]:
    return {tuple(p): list(w[1]) for p, w in zip(PROMPTS, want, strict=True)}


@given(constraint=constraints, options=samplings, seed=st.integers(0, 99), budget=st.integers(0, 12), flicker=...)
@settings(max_examples=60, deadline=None)
def test_no_draft_budget_or_batch_changes_a_constrained_text(
    constraint: CompiledConstraint, options: dict[str, Any], seed: int, budget: int, flicker: bool
) -> None:
    want = plain(constraint, options)
    drafter = TreeDrafter(seed, truths(want), vocab_size=V)
    engine = json_engine(drafter, budget=budget, flicker=flicker, max_running=3)
    got = engine.generate_many(PROMPTS, constraint=constraint, **options)
    assert [visible(c) for c in got] == want
    check_counts(got)
    check_free(engine)


@given(constraint=constraints, options=samplings, pool=st.integers(70, 140))
@settings(max_examples=20, deadline=None)
def test_preemption_changes_no_constrained_text(
    constraint: CompiledConstraint, options: dict[str, Any], pool: int
) -> None:
    want = plain(constraint, options)
    engine = json_engine(TreeDrafter(1, truths(want), vocab_size=V), context=60, pool_tokens=pool, busy_chunk=4)
    assert [visible(c) for c in engine.generate_many(PROMPTS, constraint=constraint, **options)] == want
    check_free(engine)


class OnceAStep(GrammarMatcher):
    """Masks every row of a draft as its root: the grammar advanced once per step."""

    def allowed(self, path: Sequence[int] = ()) -> Ids:
        return super().allowed()


class OncePerStep(CompiledConstraint):
    def open(self) -> GrammarMatcher:
        return OnceAStep(self._matcher, self.kind, self._codec)


def test_a_grammar_that_advances_once_per_step_is_caught() -> None:
    """Negative control: its texts differ, or leave the grammar."""
    good = CONSTRAINTS[0]
    bad = OncePerStep("json_schema", good.source, good._matcher, CODEC)
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": 1}
    want = plain(good, options)
    engine = json_engine(TreeDrafter(0, truths(want), hit=1.0, vocab_size=V))
    try:
        got = [visible(c) for c in engine.generate_many(PROMPTS, constraint=bad, **options)]
    except InvalidRequest as error:
        assert "not allowed" in str(error)  # noqa: PT017 - either way of being caught will do
    else:
        assert got != want


@pytest.mark.parametrize("rule", ["coupled", "rejection", "block", "typical:epsilon=0.5", "lenience:lenience=0.3"])
@pytest.mark.parametrize("malicious", [False, True])
def test_eight_hostile_drafts_in_parallel_and_every_text_is_in_the_grammar(rule: str, malicious: bool) -> None:
    engine = json_engine(RandomDrafter(vocab_size=V, tree=True, malicious=malicious), budget=12)
    for constraint in CONSTRAINTS:
        prompts = [[3 + i, 5] for i in range(8)]
        options: dict[str, Any] = {"temperature": 1.0, "seed": 4, "max_tokens": 60, "verify": rule}
        for answer in engine.generate_many(prompts, constraint=constraint, **options):
            assert_in_grammar(answer, constraint)
    check_free(engine)


def assert_in_grammar(answer: Completion, constraint: CompiledConstraint) -> None:
    """The tokens obey step by step, and a text that stopped is whole."""
    matcher = constraint.open()
    for token in answer.token_ids:
        assert token in matcher.allowed()
        matcher.push(token)
    if answer.finish_reason == "length":
        return
    assert answer.finish_reason == "stop"
    if constraint.kind == "regex":
        assert re.fullmatch(constraint.source, answer.text)
    elif constraint.kind.startswith("json"):
        value = json.loads(answer.text)
        assert isinstance(value, dict)
        if constraint.kind == "json_schema":
            assert list(value) == list(SCHEMA["required"])
            assert value["b"] in ("ab", "cd")
            assert len(value["abc"]) <= 6
            assert 0 <= value["n"] <= 50
    else:
        assert re.fullmatch(r"a(\[(a?)|[0-9]{1,3}|\[.*\])b", answer.text)


def test_a_length_cap_says_so_and_a_whole_text_stops() -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 2}
    whole = json_engine().generate(PROMPTS[0], constraint=CONSTRAINTS[0], max_tokens=80, **options)
    assert whole.finish_reason == "stop"
    for cap in range(1, len(whole.token_ids) + 1):
        for drafter in (None, RandomDrafter(vocab_size=V)):
            cut = json_engine(drafter).generate(PROMPTS[0], constraint=CONSTRAINTS[0], max_tokens=cap, **options)
            assert cut.token_ids == whole.token_ids[:cap]
            assert cut.finish_reason == ("stop" if cap == len(whole.token_ids) else "length")


def test_stop_strings_and_min_tokens_work_together_with_a_grammar() -> None:
    choice = compile_constraint("regex", "ab(cd){0,3}", CODEC)
    text = "".join(CODEC.decode([t]) for t in json_engine().generate([3, 4], constraint=choice, max_tokens=9).token_ids)
    assert text in ("ab", "abcd", "abcdcd", "abcdcdcd")
    longest = json_engine().generate([3, 4], constraint=choice, min_tokens=40, max_tokens=99)
    assert longest.text == "abcdcdcd"  # an end is banned while anything else is allowed
    assert longest.finish_reason == "stop"
    stopped = json_engine().generate([3, 4], constraint=choice, min_tokens=4, stop=("cdc",), max_tokens=99)
    assert (stopped.text, stopped.finish.detail) == ("ab", "cdc")
    on = json_engine().generate([3, 4], constraint=choice, ignore_eos=True, max_tokens=99)
    assert on.text == "abcdcdcd"


def test_forced_tokens_are_drafted_for_free_and_accepted_whole() -> None:
    fixed = compile_constraint("json_schema", {"const": {"abc": "ab", "b": [12, None]}}, CODEC)
    answer = json_engine(RandomDrafter(vocab_size=V), budget=8).generate([3, 4], constraint=fixed, max_tokens=40)
    assert json.loads(answer.text) == {"abc": "ab", "b": [12, None]}
    sources = [source for _, source in answer.pieces]
    assert sources.count(GRAMMAR) > len(sources) // 2
    assert answer.speculation.accepted == answer.speculation.drafted

    class Paused(FixedController):
        def budgets(self, contexts: Sequence[Context]) -> list[int]:
            return [0] * len(contexts)

    paused = json_engine(RandomDrafter(vocab_size=V))
    paused.controller = Paused(8)
    while_paused = paused.generate([3, 4], constraint=fixed, max_tokens=40)
    assert [source for _, source in while_paused.pieces].count(GRAMMAR) == sources.count(GRAMMAR)
    alone = json_engine().generate([3, 4], constraint=fixed, max_tokens=40)
    assert {source for _, source in alone.pieces} == {"target"}  # plain stays plain


def test_choices_have_matchers_of_their_own() -> None:
    options: dict[str, Any] = {"temperature": 1.5, "seed": 0, "max_tokens": 60, "n": 4}
    answer = json_engine(RandomDrafter(vocab_size=V)).generate([3, 4], constraint=CONSTRAINTS[0], **options)
    assert len({c.text for c in answer.choices}) > 1
    for choice in answer.choices:
        assert_in_grammar(choice, CONSTRAINTS[0])


def test_a_grammar_that_fails_ends_its_own_request_and_no_other() -> None:
    dead = compile_constraint("regex", "ab(Z|cd)Z", CODEC)
    engine = json_engine(RandomDrafter(vocab_size=V), max_running=4)
    want = visible(json_engine().generate([3, 4], max_tokens=12, seed=0, constraint=CONSTRAINTS[2]))
    handles = [
        engine.submit(engine.request([3, 4], max_tokens=12, seed=0, constraint=c)) for c in (dead, CONSTRAINTS[2])
    ]
    with pytest.raises(InvalidRequest, match="allows no token"):
        list(engine.follow(handles[0]))
    list(engine.follow(handles[1]))
    assert visible(engine.completion(handles[1])) == want
    check_free(engine)


class Alternating:
    """A matcher by hand over ids 0 to 3: after 0 comes 1, after 1 anything but 1, else anything but 0 and 3."""

    def __init__(self, before: Sequence[int] = ()) -> None:
        self._before = tuple(before)

    def rows(self, path: Sequence[int]) -> list[int]:
        last = ((*self._before, *path) or (2,))[-1]
        return [1] if last == 0 else [0, 2, 3] if last == 1 else [1, 2]

    ended = False

    def push(self, token: int) -> None: ...

    def allowed(self, path: Sequence[int] = ()) -> Any: ...

    def permits(self, token: int, path: Sequence[int] = ()) -> bool:
        return token in self.rows(path)

    def forced(self, path: Sequence[int] = ()) -> tuple[int, ...]:
        return (1,) if self.rows(path) == [1] else ()


def _masked(seed: int) -> Model:
    raw = random_model(seed, 4)

    def model(context: tuple[int, ...]) -> Probabilities:
        row = raw(context).copy()
        row[[t for t in range(4) if t not in Alternating(context).rows(())]] = 0.0
        masked: Probabilities = row / row.sum()
        return masked

    return model


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("shape", [chain_shape(2), ((), ())])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("context", [(), (0,), (1,)])
def test_ratio_rules_keep_the_constrained_law_exactly(
    rule: str, shape: Shape, sampled: bool, context: tuple[int, ...]
) -> None:
    model, q = _masked(len(context)), random_model(50, 4)
    draw = sampler(q, shape, deterministic=lambda context: not sampled)

    def drafting(context: tuple[int, ...], coins: Coins) -> Draft:
        return follow(draw(context, coins), Alternating(context), depth=2, budget=3)

    law = chained_steps(create_verifier(rule), model, drafting, context)
    assert total_variation(law, model, 4, context) < 1e-12


def test_dropping_sampled_nodes_for_what_they_are_is_caught() -> None:
    """Negative control: it is how one would prune at first thought, and it is biased."""
    from sooner import tree

    model, q = _masked(1), random_model(51, 4)
    draw = sampler(q, chain_shape(1))

    def drafting(context: tuple[int, ...], coins: Coins) -> Draft:
        draft = draw(context, coins)
        return tree.prune(draft, [i for i in range(len(draft)) if Alternating(context).permits(draft.tokens[i])])

    assert total_variation(chained_steps(create_verifier("rejection"), model, drafting), model, 4) > 1e-3


def test_follow_keeps_budget_and_depth_and_the_likeliest() -> None:
    wide = Draft((3, 1, 2, 0, 2), (ROOT, ROOT, ROOT, 1, 2), (0.9, 0.2, 0.6, 0.9, 0.9), ("x",) * 5)
    kept = follow(wide, Alternating((2,)), depth=4, budget=8)
    assert (kept.tokens, kept.parents) == ((1, 0, 1, 2, 2), (ROOT, 0, 1, ROOT, 3))
    assert kept.sources == ("x", "x", GRAMMAR, "x", "x")
    assert follow(wide, Alternating((2,)), depth=2, budget=3).tokens == (1, 2, 2)
    assert follow(Draft(), Alternating((0,)), depth=0, budget=2) == Draft()
    assert follow(Draft(), Alternating((0,)), depth=3, budget=0).sources == (GRAMMAR,)  # no guess, so no budget
    assert follow(Draft(), Alternating((0,)), depth=3, budget=2).sources == (GRAMMAR,)


def test_pieces_beyond_the_vocabulary_are_never_allowed() -> None:
    answer = json_engine().generate([3], constraint=CONSTRAINTS[1], logit_bias={V - 1: 100.0}, max_tokens=20)
    assert max(answer.token_ids) < len(PIECES)


def test_an_empty_text_may_be_all_there_is() -> None:
    empty = compile_constraint("grammar", 'start: ""', CODEC)
    answer = json_engine(RandomDrafter(vocab_size=V)).generate([3], constraint=empty, max_tokens=5)
    assert (answer.text, answer.finish_reason) == ("", "stop")
