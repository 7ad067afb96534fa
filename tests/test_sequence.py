"""The state machine on hand-written rows: EOS, stop strings and caps at every offset; prompts at the limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sooner import tree
from sooner.errors import ContextOverflow, InvalidRequest
from sooner.prompt import make_request
from sooner.sampling import Processor
from sooner.sequence import Sequence
from sooner.text import Detokenizer
from sooner.types import ROOT, Request, Rows, Step, Work
from sooner.verify import create_verifier
from toy import PIECES, ToyCodec, V, token_bytes

CODEC = ToyCodec()


class Held:
    """A session that only counts."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def settle(self, path: object) -> None: ...

    def sync(self, tokens: object) -> int:
        return 0

    def close(self) -> None: ...


def sequence(prompt: list[int], *, context: int = 64, eos: frozenset[int] = CODEC.eos_ids, **options: Any) -> Sequence:
    request = make_request(prompt, None, options, codec=CODEC, template=None)
    return Sequence(
        request,
        id=0,
        seed=0,
        processor=Processor(request.sampling, vocab_size=V, seed=0, prompt=prompt, eos_ids=eos),
        verifier=create_verifier("coupled"),
        detokenizer=Detokenizer(token_bytes),
        context=context,
        eos_ids=eos,
    )


def scripted(truth: list[int], k: int, **options: Any) -> tuple[Sequence, list[Step]]:
    """Run a text the target would write (``truth``) with k right drafts a step, rows written by hand."""
    seq = sequence([1, 2], **options)
    session = Held()
    steps: list[Step] = []
    while seq.finish is None:
        at = seq.emitted
        drafts = truth[at : at + min(k, seq.depth_limit)] if at else []
        work = seq.plan(session, tree.chain(drafts, 0.5, "oracle"))
        logits = np.zeros((len(drafts) + 1, V), np.float32)
        for i in range(len(drafts) + 1):
            logits[i, truth[at + i] if at + i < len(truth) else 1] = 9.0
        steps.append(seq.apply(work, Rows(logits)))
        session.tokens = seq.tokens[:-1]
    return seq, steps


def outcome(seq: Sequence, steps: list[Step]) -> tuple[Any, ...]:
    logprobs = [entry for step in steps for entry in step.logprobs or ()]
    return "".join(step.text for step in steps), seq.tokens[seq.prompt_length :], seq.finish, seq.usage, logprobs


WORDS = [3, 1, 21, 4, 22, 5, 20, 12, 13, 6, 7, 24, 1, 2, 3]  # "ca stop d..." with a split é and two-piece "to"+"p!"


@pytest.mark.parametrize("k", [1, 2, 3, 4, 8, 12])
def test_eos_at_every_offset(k: int) -> None:
    for position in range(1, 12):
        for eos in ([WORDS[position]], [WORDS[position], WORDS[position - 1]], []):
            for ignore in (False, True):
                options = {"eos": frozenset(eos), "ignore_eos": ignore, "max_tokens": 14, "logprobs": 1}
                assert outcome(*scripted(WORDS, k, **options)) == outcome(*scripted(WORDS, 0, **options))


@pytest.mark.parametrize("k", [1, 2, 4, 8, 12])
def test_stop_strings_and_caps_at_every_offset(k: int) -> None:
    whole = "".join(PIECES[t].decode("utf-8", "replace") for t in WORDS if t not in (12, 13))
    assert whole
    for stop in ("c", "ca", "a", "stop", "top", "é", "t", "g", "zz"):
        for cap in range(1, 15):
            for include in (False, True):
                options = {"stop": stop, "max_tokens": cap, "include_stop": include, "logprobs": 0}
                assert outcome(*scripted(WORDS, k, **options)) == outcome(*scripted(WORDS, 0, **options))


def test_a_stop_string_at_the_cap_wins_over_the_cap() -> None:
    for k in (0, 1, 3):
        seq, steps = scripted(WORDS, k, stop="a", max_tokens=2)
        assert seq.finish is not None
        assert (seq.finish.reason, seq.finish.detail) == ("stop", "a")
        assert outcome(seq, steps)[0] == "c"


def test_eos_at_the_cap_wins_over_the_cap() -> None:
    seq, _ = scripted([3, 4, 0], 2, max_tokens=3)
    assert seq.finish is not None
    assert (seq.finish.reason, seq.finish.detail) == ("stop", 0)
    assert seq.usage.completion_tokens == 3


def test_a_half_character_at_the_end_is_replaced_and_one_in_the_middle_waits() -> None:
    first = PIECES.index("é".encode()[:1])
    _, steps = scripted([3, first], 0, max_tokens=2)
    assert [s.text for s in steps] == ["c", "\ufffd"]
    _, steps = scripted([first, first + 1, 3], 0, max_tokens=3)
    assert [s.text for s in steps] == ["", "é", "c"]


def test_exact_budgets() -> None:
    for cap in (1, 2, 4, 5, 6):
        for k in (0, 1, 4, 5):
            seq, steps = scripted([1] * 20, k, max_tokens=cap)
            assert seq.usage.completion_tokens == cap
            assert sum(len(s.draft) for s in steps) <= cap
            assert seq.depth_limit == 0


def test_prompts_at_the_edge_of_the_context() -> None:
    assert sequence([1] * 8, context=8).depth_limit == 0
    assert sequence([1] * 7, context=8).depth_limit == 1
    with pytest.raises(ContextOverflow, match=r"9 tokens.*holds 8"):
        sequence([1] * 9, context=8)


@pytest.mark.parametrize("prompt", [[], [V], [-1, 2]])
def test_prompts_that_cannot_be_read(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sequence(prompt)
    assert caught.value.param == "prompt"


def test_a_plan_feeds_what_the_session_lacks() -> None:
    seq = sequence([1, 2, 3, 4, 5])
    session = Held()
    assert seq.plan(session, chunk=3) == Work(session, (1, 2, 3), logits=False)
    session.tokens = [1, 2, 3]
    assert seq.plan(session, chunk=3) == Work(session, (4, 5))


def test_rows_of_a_tree_are_read_where_the_path_goes() -> None:
    """Two branches: the target takes the second; its bonus token comes from that branch's last row."""
    seq = sequence([1, 2])
    draft = tree.merge([tree.chain([3, 4], 0.5, "one"), tree.chain([5, 6], 0.5, "two")])
    logits = np.zeros((5, V), np.float32)
    for node, token in ((ROOT, 5), (draft.child(ROOT, 5), 6), (draft.child(2, 6), 7)):
        assert node is not None
        logits[node + 1, token] = 9
    step = seq.apply(Work(Held(), (2,), draft), Rows(logits))
    assert step.tokens == (5, 6, 7)
    assert step.sources == ("two", "two", "target")
    assert seq.tokens == [1, 2, 5, 6, 7]


def test_a_request_with_no_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        make_request("  \n", None, {}, codec=CODEC, template=None)
    with pytest.raises(InvalidRequest, match="did you mean temperature"):
        make_request("a", None, {"temprature": 1}, codec=CODEC, template=None)
    assert Request((1,)).sampling.temperature == 0.0
