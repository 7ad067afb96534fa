"""How drafters are named: the short form, mappings, vLLM's JSON; each mistake is answered with the right name."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sooner.draft import DRAFTERS, create_drafter, from_speculative_config, known_kinds, parse_spec
from sooner.draft.ngram import NgramDrafter
from sooner.draft.oracle import OracleDrafter
from sooner.draft.random import RandomDrafter
from sooner.errors import DraftError
from sooner.targets.toy import ToyTarget
from sooner.types import Verdict
from toy import ToyCodec, V

word = st.text("abcdefghij_", min_size=1, max_size=8)
value = st.text("abc123./-=", min_size=1, max_size=8).filter(lambda v: v.strip() == v)


@given(kind=word, options=st.dictionaries(word.filter(lambda w: w != "kind"), value, max_size=4))
def test_both_forms_say_the_same(kind: str, options: dict[str, str]) -> None:
    pairs = [f"{name}={text}" for name, text in options.items()]
    assert parse_spec(",".join([f"kind={kind}", *pairs])) == {"kind": kind, **options}
    if pairs:
        assert parse_spec(f"{kind}:{','.join(pairs)}") == {"kind": kind, **options}
    else:
        assert parse_spec(kind) == {"kind": kind}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "names no kind"),
        ("max=8", "names no kind"),
        ("ngram:max", "cannot read drafter 'ngram:max' at 'max'"),
        ("kind=ngram,=3", "at '=3'"),
        ("ngram:max=", "at 'max='"),
        ("ngram:max=1,max=2", "gives max twice"),
        ("ngrm", "did you mean ngram"),
        ("zebra", "the kinds are"),
        ("ngram:mx=3", "did you mean max?): its options are max, max_match, min_match"),
        ("ngram:max=many", "ngram option max must be an integer, not 'many'"),
        ("random:tree=perhaps", "random option tree must be true or false"),
        ("suffix:factor=much", "suffix option factor must be a number"),
        ("oracle", "oracle needs truth"),
        ("oracle:truth=3", "cannot be written as text"),
        ("self", "self needs target"),
    ],
)
def test_mistakes_are_answered_in_one_line(spec: str, words: str) -> None:
    with pytest.raises(DraftError) as caught:
        create_drafter(spec)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_can_be_written_is_asked_for_in_writing() -> None:
    with pytest.raises(DraftError, match=r"drafter model needs path: write kind=model,path=\.\.\."):
        create_drafter("model", open_model=None, target=None, codec=None)


def test_options_are_read_by_the_constructors_types() -> None:
    drafter = create_drafter("oracle:max=3,rate=0.5,error_at=none,wrong=7", truth=[1, 2])
    assert isinstance(drafter, OracleDrafter)
    assert vars(drafter) == vars(OracleDrafter([1, 2], max=3, rate=0.5, wrong=7))
    assert vars(create_drafter("random:tree=yes,malicious=off")) == vars(RandomDrafter(tree=True))


def test_mappings_may_be_typed_and_win_over_what_is_offered() -> None:
    drafter = create_drafter({"kind": "random", "vocab_size": 9}, vocab_size=5, target=object(), seed=4)
    assert vars(drafter) == vars(RandomDrafter(vocab_size=9, seed=4))


def test_every_built_in_is_registered_under_its_own_name() -> None:
    offered: dict[str, Any] = {"truth": [1], "target": ToyTarget(V)}
    assert {"ngram", "suffix", "given", "oracle", "self", "random"} <= set(known_kinds())
    for point in entry_points(group=DRAFTERS):
        if point.name in ("ngram", "suffix", "given", "oracle", "self", "random"):
            assert create_drafter(point.name, **offered).name == point.name


@pytest.mark.parametrize(
    ("config", "draft", "verify"),
    [
        ({"method": "ngram", "num_speculative_tokens": 5}, {"kind": "ngram", "max": 5}, None),
        (
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
            {"kind": "ngram", "max": 5, "max_match": 4, "min_match": 2},
            None,
        ),
        ({"model": "[ngram]", "prompt_lookup_max": 1}, {"kind": "ngram", "max_match": 1, "min_match": 1}, None),
        (
            {"method": "suffix", "suffix_decoding_max_spec_factor": 2.0, "rejection_sample_method": "standard"},
            {"kind": "suffix", "factor": 2.0},
            "rejection",
        ),
        ({"method": "ngram", "model": None, "draft_tensor_parallel_size": 1}, {"kind": "ngram"}, None),
        (
            {"method": "draft_model", "model": "small.gguf", "num_speculative_tokens": 5},
            {"kind": "model", "path": "small.gguf", "max": 5},
            None,
        ),
        ({"model": "small.gguf"}, {"kind": "model", "path": "small.gguf"}, None),
    ],
)
def test_vllm_configurations_are_read(config: dict[str, object], draft: dict[str, object], verify: str | None) -> None:
    read = from_speculative_config(json.dumps(config))
    assert read.draft == draft
    assert read.verify == verify
    target = ToyTarget(V)
    offered: dict[str, Any] = {
        "open_model": lambda path: (target, ToyCodec()),
        "target": target,
        "codec": ToyCodec(),
    }
    assert create_drafter(read.draft, **offered).name == draft["kind"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{method: ngram}", "not JSON"),
        ("[1]", "must be a JSON object"),
        ({}, "names no method"),
        ({"method": "eagle3", "model": "x"}, "'eagle3' is not available: the methods are"),
        ({"method": "ngram", "model": "gpt2"}, "takes no model"),
        ({"method": "ngram", "prompt_lookup": 3}, "'prompt_lookup' = 3 is not supported: known for ngram are"),
        ({"method": "ngram", "disable_by_batch_size": 4}, "the controller decides"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 24}, "no depth limit"),
        ({"method": "ngram", "draft_tensor_parallel_size": 2}, "one device"),
        ({"method": "ngram", "rejection_sample_method": "synthetic"}, "must be one of standard"),
    ],
)
def test_what_vllm_keys_cannot_say_here_is_refused_by_name(config: Any, words: str) -> None:
    with pytest.raises(DraftError) as caught:
        from_speculative_config(config if isinstance(config, str) else json.dumps(config))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_verdict_is_no_drafter_option() -> None:
    """A control: values that are already typed are passed on as they are, and checked by the constructor."""
    with pytest.raises(DraftError, match="max must be an integer"):
        create_drafter({"kind": "ngram", "max": Verdict((), 1)})
    assert isinstance(create_drafter({"kind": "ngram", "max": 3}), NgramDrafter)
