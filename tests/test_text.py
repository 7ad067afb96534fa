from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sooner.errors import CorruptModel, InvalidRequest, ModelNotFound, UnsupportedModel
from sooner.store import ModelFiles
from sooner.text import Detokenizer, TextCodec, Tokenizer

HARD = [
    "👨‍👩‍👧‍👦",
    "e\u0301",
    "안녕하세요",
    "السلام",
    "\x00\x1b",
    "   \n\t ",
    "𝔘",
    "🇰🇷",
    "ﷺ",
    "\ufffd",
    "좋고 화창합니다.",
]


@pytest.fixture(scope="module")
def tokenizer(default_files: ModelFiles) -> Tokenizer:
    return Tokenizer.load(default_files.folder)


def joined(detokenizer: Detokenizer, ids: list[int]) -> str:
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()


def pieces(stream: Callable[[int], str], ids: list[int]) -> list[str]:
    return [stream(i) for i in ids]


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(-5, 49_200), st.integers(80, 270)), max_size=40))
def test_pushes_and_flush_are_the_decoded_whole(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert joined(tokenizer.detokenizer(), ids) == tokenizer.decode(ids)


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(HARD), max_size=8).map("".join)
)
def test_no_push_ends_in_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    whole = tokenizer.decode(ids)
    stream = tokenizer.detokenizer()
    seen = ""
    for token in ids:
        seen += stream.push(token)
        assert whole.startswith(seen)
    assert seen + stream.flush() == whole


def test_the_law_notices_a_decoder_that_decodes_token_by_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("안녕하세요 👨‍👩‍👧‍👦")
    assert joined(tokenizer.detokenizer(), ids) == "안녕하세요 👨‍👩‍👧‍👦"
    assert "".join(tokenizer.decode([i]) for i in ids) != "안녕하세요 👨‍👩‍👧‍👦"


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=24), cuts=st.lists(st.integers(0, 24), max_size=6))
def test_any_cut_of_any_bytes_reads_like_the_whole(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    parts = [data[a:b] for a, b in pairwise(edges)]
    assert joined(Detokenizer(parts.__getitem__), list(range(len(parts)))) == data.decode("utf-8", "replace")


def test_decoding_agrees_with_the_library(tokenizer: Tokenizer) -> None:
    core = tokenizer._core
    for text in HARD:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == core.decode(ids, skip_special_tokens=True)
    broken = tokenizer.encode("한국")[:-1]
    assert tokenizer.decode(broken) == core.decode(broken, skip_special_tokens=True)


def test_special_tokens_are_text_unless_asked(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>user\nhi<|im_end|>"
    marked = tokenizer.encode(text, special=True)
    assert (marked[0], marked[-1]) == (1, 2)
    plain = tokenizer.encode(text)
    assert not tokenizer.special_ids & set(plain)
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode(marked) == "user\nhi"
    assert tokenizer.encode(text, special=True) == marked


def test_what_has_no_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.vocab_size == 49_152
    for id in (-1, 0, 2, 49_152, 10**9):
        assert tokenizer.token_bytes(id) == b""
    assert tokenizer.token_bytes(tokenizer.encode(" sky")[0]) == b" sky"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode("안녕"))) == "안녕".encode()


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        tokenizer.encode("a\ud800b")


def test_threads_do_not_mix_up_the_meaning_of_special(tokenizer: Tokenizer) -> None:
    wrong: list[str] = []

    def work(special: bool) -> None:
        for _ in range(300):
            if (1 in tokenizer.encode("<|im_start|>", special=special)) is not special:
                wrong.append(str(special))

    threads = [threading.Thread(target=work, args=(special,)) for special in (True, False) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_is_a_codec(tokenizer: Tokenizer) -> None:
    codec: TextCodec = tokenizer
    assert codec.decode(codec.encode("ab")) == "ab"


# Small vocabularies


def save(folder: Path, **parts: Any) -> Path:
    vocabulary = {
        token: i for i, token in enumerate(["<s>", "</s>", "▁hi", "▁", "hi", "<0xEC>", "<0x95>", "<0x88>", "▁한국"])
    }
    document = {
        "version": "1.0",
        "added_tokens": [_added(0, "<s>", special=True), _added(1, "</s>", special=True)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "ByteFallback"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
        },
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["▁", "hi"]], "byte_fallback": True},
        **parts,
    }
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def _added(id: int, content: str, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": content, "special": special, **flags}


BOS = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for i, t in enumerate(("<s>", "</s>"))},
}


def test_sentence_piece_drops_the_first_space_only(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(tmp_path))
    assert tokenizer.decode([2, 2]) == "hi hi"
    assert tokenizer.decode([0, 2, 8]) == "hi 한국"
    assert tokenizer.decode([3, 2]) == " hi"
    assert tokenizer.decode([5, 6, 7, 5, 6]) == "안\ufffd"


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(-1, 9), max_size=12))
def test_sentence_piece_streams_like_the_whole(tmp_path_factory: pytest.TempPathFactory, ids: list[int]) -> None:
    tokenizer = Tokenizer.load(save(tmp_path_factory.getbasetemp()))
    assert joined(tokenizer.detokenizer(), ids) == tokenizer.decode(ids)


def test_a_bos_is_given_once_and_an_eos_never(tmp_path: Path) -> None:
    save(tmp_path, post_processor=BOS)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1]}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("▁") == [0, 3]
    assert tokenizer.encode("<s>▁", special=True) == [0, 3]
    assert tokenizer.encode("▁", bos=False) == [3]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": [1, 7]}}, {1, 7}),
        ({"config.json": {"eos_token_id": 5}}, {5}),
        ({"config.json": {"eos_token_id": 5}, "tokenizer_config.json": {"eos_token": "</s>"}}, {1, 5}),
        ({"tokenizer_config.json": {"eos_token": {"content": "</s>"}, "bos_token": "<s>"}}, {1}),
        ({}, set()),
    ],
)
def test_end_tokens_come_from_the_usual_files(tmp_path: Path, files: dict[str, Any], expected: set[int]) -> None:
    save(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eos_ids == expected
    assert tokenizer.eos_token in ("", "</s>")


LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def test_user_defined_tokens_are_text(tmp_path: Path) -> None:
    added = [_added(0, "<s>", special=True), _added(9, "<tool> é", special=False)]
    tokenizer = Tokenizer.load(save(tmp_path, added_tokens=added, decoder=LEVEL))
    assert tokenizer.token_bytes(9) == "<tool> é".encode()
    assert tokenizer.special_ids == {0}


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptModel, match="cannot be read") as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)
    save(tmp_path, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        Tokenizer.load(tmp_path)
    save(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CorruptModel, match=r"config\.json"):
        Tokenizer.load(tmp_path)
