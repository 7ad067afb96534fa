"""Foreign vocabularies: texts and drafts between tokenizers, the same text whatever they do, and what is accepted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_model import NgramModel, byte_level, prose, sentence_piece
from test_model_drafter import near_model, toy_law

from laws import chained_steps, total_variation
from sooner import tree
from sooner.control.fixed import FixedController
from sooner.draft.choice import Choice, followed
from sooner.draft.model import ModelDrafter
from sooner.draft.retokenise import Retokeniser
from sooner.draft.transcript import Transcript
from sooner.draft.vocabulary import first_difference, shared_tokens
from sooner.engine import Engine
from sooner.errors import DraftError
from sooner.protocols import Coins, Context, Target
from sooner.targets.toy import ToyTarget
from sooner.text import Tokenizer
from sooner.types import ROOT, Draft, Rows, Sampling, Step
from sooner.verify import create_verifier
from test_engine_laws import PROMPTS, plain, samplings, visible
from toy import PIECES, ToyCodec, toy_engine

FOREIGN = (b"<s>", b"ab", b"st", b"op", *(bytes([c]) for c in b".hgfedcba \n"), "안녕".encode(), b"\xed\x95\x9c", b"")


class ForeignCodec(ToyCodec):
    """Other pieces, in another order, with a BOS: greedy longest match."""

    eos_ids = frozenset({len(FOREIGN) - 1})
    vocab_size = len(FOREIGN)

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        data, ids = text.encode(), [0] if bos else []
        while data:
            fits = [i for i, piece in enumerate(FOREIGN) if piece and i and data.startswith(piece)]
            best = max(fits, key=lambda i: len(FOREIGN[i]), default=None)
            ids += [] if best is None else [best]
            data = data[1 if best is None else len(FOREIGN[best]) :]
        return ids

    def token_bytes(self, id: int) -> bytes:
        return FOREIGN[id] if 0 < id < len(FOREIGN) else b""


def foreign(target: Target, model: Target, vocabulary: str = "auto", **options: Any) -> ModelDrafter:
    opened = model, ForeignCodec()
    return ModelDrafter(
        "toy",
        open_model=lambda path: opened,
        target=target,
        codec=ToyCodec(),
        vocabulary=vocabulary,
        thrifty=False,
        **options,
    )


@given(
    options=samplings,
    road=st.sampled_from(["auto", "tokens", "text"]),
    width=st.integers(1, 3),
    budget=st.integers(0, 9),
    context=st.sampled_from([9, 256]),
)
@settings(max_examples=60, deadline=None)
def test_no_foreign_draft_changes_anything(
    options: dict[str, Any], road: str, width: int, budget: int, context: int
) -> None:
    model = ToyTarget(len(FOREIGN), sharpness=1.0, context=context)
    engine = toy_engine(budget=budget, flicker=True, max_running=3)
    engine.drafter = foreign(engine.target, model, road, width=width)
    got = engine.generate_many(PROMPTS, **options)
    assert engine.warning is None
    assert [visible(c) for c in got] == plain(PROMPTS, options)
    assert model.sessions == []


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_shared_tokens_are_sampled_honestly(rule: Any) -> None:
    """q is the law restricted to the intersection: exact under the ratio rules; the unrestricted one would not be."""

    class Abc(ToyCodec):
        vocab_size = 4
        eos_ids = frozenset({3})

        def token_bytes(self, id: int) -> bytes:
            return b"abc"[id : id + 1]

    class Cxa(Abc):
        def token_bytes(self, id: int) -> bytes:
            return b"cxa"[id : id + 1]

        def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
            return ["cxa".index(c) for c in text if c in "cxa"]

    target, model = ToyTarget(4, order=1, sharpness=1.0), ToyTarget(4, order=1, sharpness=1.0, seed=4)
    sampling = Sampling(temperature=0.7, verify=rule, ignore_eos=True)

    def drafting(text: tuple[int, ...], coins: Coins) -> Draft:
        drafter = ModelDrafter(
            "toy",
            open_model=lambda path: (model, Cxa()),
            target=target,
            codec=Abc(),
            vocabulary="tokens",
            thrifty=False,
            max=2,
            width=2,
        )
        context = Context(id=0, tokens=(0, *text), prompt_length=1, budget=3, sampling=sampling, coins=coins)
        (draft,) = drafter.propose([context])
        assert draft.q
        assert all(row[1] == 0 for row in draft.q.values())  # "b" is not shared
        return draft

    law = toy_law(target, 0.7)
    assert total_variation(chained_steps(create_verifier(rule), law, drafting, steps=1), law, 4) < 1e-9


@cache
def codecs() -> dict[str, Tokenizer]:
    texts = prose()
    return {
        "bytes": byte_level(texts, 1200),
        "small": byte_level(texts[::2], 500),
        "pieces": sentence_piece(texts, 900),
    }


PAIRS = [(a, b) for a in ("bytes", "small", "pieces") for b in ("bytes", "small", "pieces") if a != b]
TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(["the draft", " model", "  ", "\n\n", "한국어 ", "😀", "é", "never", "theless", "1234"])
    ).map("".join),
)


@pytest.mark.parametrize(("here", "there"), PAIRS)
@given(text=TEXTS, cuts=st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=30, deadline=None)
def test_a_transcript_does_not_depend_on_how_the_text_came(here: str, there: str, text: str, cuts: list[int]) -> None:
    ours, theirs = codecs()[here], codecs()[there]
    ids = ours.encode(text)
    transcript = Transcript(ours, theirs, {})
    for cut in sorted(cuts):
        transcript.read(ids[:cut])
    if ours.decode(ids) == text:
        assert transcript.read(ids) == theirs.encode(text)
    assert transcript.read(ids) == Transcript(ours, theirs, {}).read(ids)


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_a_long_transcript_is_closed_behind_the_reader_and_stays_the_same(here: str, there: str) -> None:
    ours, theirs = codecs()[here], codecs()[there]
    text = " ".join(part.replace("\n", " ") for part in prose()[:40])
    ids = ours.encode(text)
    transcript = Transcript(ours, theirs, {})
    for end in range(0, len(ids), 3):
        transcript.read(ids[:end])
    assert transcript.read(ids) == theirs.encode(ours.decode(ids))
    assert len(transcript._tail) < 700


def test_control_tokens_are_kept_where_both_have_them() -> None:
    ours, theirs = codecs()["bytes"], codecs()["small"]
    pairs = shared_tokens(ours, theirs)
    control = {i: int(p) for i, p in enumerate(pairs) if p >= 0 and not ours.token_bytes(i)}
    assert control == {0: 0, 1: 1}
    ids = [1, *ours.encode("the draft"), 0]
    assert Transcript(ours, theirs, control).read(ids) == [1, *theirs.encode("the draft"), 0]
    assert Transcript(ours, theirs, {}).read(ids) == theirs.encode("the draft")


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_shared_tokens_are_the_same_text_and_one_to_one(here: str, there: str) -> None:
    ours, theirs = codecs()[here], codecs()[there]
    pairs = shared_tokens(ours, theirs)
    shared = np.flatnonzero(pairs >= 0)
    assert len(shared) > 200
    assert len(set(pairs[shared].tolist())) == len(shared)
    ends = {id for id in ours.eos_ids if pairs[id] in theirs.eos_ids}
    assert ends == set(ours.eos_ids)
    assert all(ours.token_bytes(i) == theirs.token_bytes(int(pairs[i])) for i in shared.tolist() if i not in (0, 1, 2))
    assert first_difference(ours, theirs) is not None
    assert first_difference(ours, ours) is None
    # A letter that SentencePiece also has as a byte fallback: the one that is written counts.
    for letter in "aeT":
        (id,) = ours.encode(letter, bos=False)[-1:]
        (written,) = theirs.encode("x" + letter, bos=False)[-1:]
        if ours.token_bytes(id) == letter.encode() == theirs.token_bytes(written):
            assert pairs[id] == written


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_a_right_draft_is_right_in_the_targets_tokens(here: str, there: str) -> None:
    """A draft that spells how the text goes on becomes the target's tokens for it, but for the last one at times."""
    ours, theirs = codecs()[here], codecs()[there]
    retokeniser = Retokeniser(ours, theirs, shared_tokens(ours, theirs))
    right = total = 0
    for part in prose()[:60]:
        text = part.replace("\n", " ")
        ids = ours.encode(text)
        root = len(ids) // 2
        transcript = Transcript(ours, theirs, {}).read(ids[:root])
        rest = theirs.encode(text)[len(transcript) :]
        if transcript != theirs.encode(text)[: len(transcript)]:
            continue  # the texts' tokens have no common edge here: a draft model would not know either
        context = Context(id=0, tokens=ids[:root], prompt_length=1, budget=20, sampling=Sampling())
        draft = retokeniser.read(context, tree.chain(rest[:6], 0.9, "model"))
        right += followed(draft, ids[root:])
        total += max(len(draft.path(node)) for node in range(len(draft)))
    assert total > 60
    assert right > 0.8 * total


def test_a_tree_keeps_its_siblings_and_its_ends() -> None:
    ours, theirs = codecs()["bytes"], codecs()["small"]
    retokeniser = Retokeniser(ours, theirs, shared_tokens(ours, theirs))
    the, draft_ = theirs.encode(" the", bos=False)[0], theirs.encode(" draft", bos=False)[0]
    context = Context(id=0, tokens=ours.encode("of"), prompt_length=1, budget=9, sampling=Sampling())
    given_ = Draft((the, draft_, 0), (-1, -1, 0), (0.6, 0.3, 0.9), ("model",) * 3)
    got = retokeniser.read(context, given_)
    paths = {tuple(got.tokens[n] for n in got.path(node)): got.confidence[node] for node in range(len(got))}
    here = [ours.encode(word, bos=False)[0] for word in (" the", " draft")]
    assert paths == {(here[0],): pytest.approx(0.6), (here[0], 0): pytest.approx(0.9), (here[1],): pytest.approx(0.24)}
    small = retokeniser.read(Context(id=0, tokens=[5], prompt_length=1, budget=1, sampling=Sampling()), given_)
    assert len(small) == 1


def test_a_longer_token_does_not_hide_the_one_before() -> None:
    """A draft that goes on within a word, wrongly, is read without that piece too."""
    ours, theirs = codecs()["bytes"], codecs()["small"]
    retokeniser = Retokeniser(ours, theirs, shared_tokens(ours, theirs))
    context = Context(id=0, tokens=ours.encode("of"), prompt_length=1, budget=9, sampling=Sampling())
    hidden = 0
    for id in range(ours.vocab_size):
        text = ours.token_bytes(id).decode("utf-8", "ignore")
        pieces = theirs.encode(text, bos=False)
        heads = [ours.encode(theirs.decode(pieces[:1]), bos=False), ours.encode(text, bos=False)]
        if not text.startswith(" ") or len(pieces) != 2 or heads[1] != [id] or len(heads[0]) != 1:
            continue
        hidden += 1
        got = retokeniser.read(context, tree.chain(pieces, 0.7, "model"))
        first = {got.tokens[node]: got.confidence[node] for node, parent in enumerate(got.parents) if parent == ROOT}
        assert list(first) == [id, heads[0][0]], "what the whole draft says comes first"
        assert first[heads[0][0]] == pytest.approx(0.7 * 0.3)
        assert retokeniser.read(replace(context, budget=1), tree.chain(pieces, 0.7, "model")).tokens == (id,)
    assert hidden > 50


def test_the_road_that_is_followed_further_is_kept() -> None:
    choice = Choice(("tokens", "text"))
    context = Context(id=3, tokens=[1], prompt_length=1, budget=4, sampling=Sampling())
    picked = []
    for _ in range(120):
        way = choice.pick(context)
        picked.append(way)
        choice.proposed(context, tree.chain([7, 8], 0.5, "model"))
        emitted = (7, 8, 9) if way == "text" else (7, 9)
        choice.observe(Step(3, 0, 0, Draft(), (), emitted, ("model",) * len(emitted), ""))
    assert picked[:24].count("text") == 12
    assert picked[24:].count("text") > 90


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    texts, own = prose(), codecs()
    return {
        "target": NgramModel(own["bytes"], texts, 5),
        "own": NgramModel(own["bytes"], texts, 3),
        "small": NgramModel(own["small"], texts, 4),  # its tokens are shorter: as much text as three of the others
        "pieces": NgramModel(own["pieces"], texts, 3),
        "prompts": [text[:60] for text in texts[1::9]],
    }


def accepted(trained: dict[str, Any], name: str, temperature: float, road: str = "auto") -> float:
    """Accepted share of the tokens, the text checked against plain decoding."""
    codec = codecs()["bytes"]
    theirs = codec if name == "own" else codecs()[name]
    opened = trained[name], theirs
    target = trained["target"]
    options: dict[str, Any] = {"temperature": temperature, "seed": 4, "max_tokens": 48}
    engine = Engine(target, codec, controller=FixedController(5))
    want = engine.generate_many(trained["prompts"], **options)
    shape: dict[str, Any] = {"max": 5, "width": 1, "vocabulary": road, "thrifty": False}
    engine.drafter = ModelDrafter("ngram", open_model=lambda path: opened, target=target, codec=codec, **shape)
    got = engine.generate_many(trained["prompts"], **options)
    assert [visible(c) for c in got] == [visible(c) for c in want]
    assert engine.warning is None
    return sum(c.speculation.accepted for c in got) / sum(len(c.token_ids) for c in got)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ["small", "pieces"])
def test_a_foreign_vocabulary_keeps_four_fifths_of_the_acceptance(
    trained: dict[str, Any], name: str, temperature: float
) -> None:
    own = accepted(trained, "own", temperature)
    assert own > 0.6
    assert accepted(trained, name, temperature) >= 0.8 * own


def test_without_a_shared_token_there_is_only_the_text() -> None:
    class Nothing(ForeignCodec):
        eos_ids: frozenset[int] = frozenset()

        def token_bytes(self, id: int) -> bytes:
            return "漢".encode() if id else b""

    opened = ToyTarget(3), Nothing()
    options: dict[str, Any] = {"open_model": lambda path: opened, "target": near_model(0.0), "codec": ToyCodec()}
    with pytest.raises(DraftError, match="shares no token"):
        ModelDrafter("toy", vocabulary="tokens", **options)
    drafter = ModelDrafter("toy", **options)
    context = Context(id=0, tokens=[1, 2], prompt_length=1, budget=4, sampling=Sampling())
    drafts = drafter.propose([context])
    assert len(drafts) == 1
    drafter.observe(Step(0, 0, 0, drafts[0], (), (1,), ("target",), ""), Rows(np.zeros((1, len(PIECES)), np.float32)))
    drafter.forget(0)
