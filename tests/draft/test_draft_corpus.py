"""The corpus: a suffix array against plain definitions, the files it is made of, its cache; no text changes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commandline import invoke
from sooner.draft import create_drafter
from sooner.draft.corpus import CorpusDrafter
from sooner.draft.corpus_index import CorpusIndex
from sooner.errors import DraftError
from sooner.protocols import Context
from sooner.store.shelf import shelved
from sooner.types import Draft, Sampling
from test_engine_laws import PROMPTS, check_counts, check_free, plain, samplings, visible
from toy import ToyCodec, V, toy_engine

ids = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))


def corpus(path: Path, **options: Any) -> CorpusDrafter:
    return CorpusDrafter(path=str(path), codec=ToyCodec(), shelf=shelved, **options)


def propose(drafter: CorpusDrafter, tokens: Sequence[int], budget: int = 4) -> Draft:
    context = Context(id=1, tokens=list(tokens), prompt_length=1, budget=budget, sampling=Sampling())
    return drafter.propose([context])[0]


def occurrences(texts: Sequence[Sequence[int]], key: Sequence[int]) -> list[tuple[int, ...]]:
    """By definition: the rest of its text after every occurrence of ``key``, sorted."""
    n = len(key)
    return sorted(
        tuple(t[at + n :]) for t in texts for at in range(len(t) - n + 1) if list(t[at : at + n]) == list(key)
    )


@given(texts=st.lists(ids, min_size=1, max_size=5), tail=ids, least=st.integers(1, 4), wide=st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_index_finds_every_occurrence_of_the_longest_match(
    texts: list[list[int]], tail: list[int], least: int, wide: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        CorpusIndex.build(texts, 100_000 if wide else 100).save(Path(folder))
        index = CorpusIndex.load(Path(folder))
    m = next((m for m in range(len(tail), least - 1, -1) if occurrences(texts, tail[-m:])), 0)
    length, first, last = index.longest(tail, least)
    assert length == m
    if m:
        after = occurrences(texts, tail[-m:])
        assert last - first == len(after)
        assert sorted(map(tuple, index.after(m, first, last, 50, 1000))) == [run for run in after if run]
        assert len(index.after(m, first, last, 2, 3)) <= 3


def test_large_and_foreign_ids_are_only_not_found() -> None:
    for vocab_size, big in ((65_535, 65_534), (200_000, 199_999)):
        index = CorpusIndex.build([[big, 1, 2, big, 1, 3]], vocab_size)
        assert index.longest([7, big, 1], 1)[0] == 2
        for foreign in (-1, 1 << 16, 1 << 33, index.seam):
            assert index.longest([foreign], 1) == (0, 0, 0)


def test_the_commonest_continuation_comes_first_and_rare_ones_are_siblings(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcd abcd abce")
    draft = propose(corpus(tmp_path), ToyCodec().encode("gabc"), budget=3)
    first = [draft.tokens[node] for node in draft.children(-1)]
    assert [ToyCodec().decode([token]) for token in first] == ["d", "e"]
    assert draft.confidence[0] > draft.confidence[list(draft.tokens).index(first[1])] > 0
    assert set(draft.sources) == {"corpus"}


def test_no_match_runs_from_one_file_into_the_next(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc")
    (tmp_path / "b").write_text("def")
    drafter = corpus(tmp_path)
    assert propose(drafter, ToyCodec().encode("bc")).tokens == ()
    assert propose(drafter, ToyCodec().encode("cd")).tokens == ()
    assert propose(drafter, ToyCodec().encode("ab")).tokens == tuple(ToyCodec().encode("c"))


def test_texts_longer_than_a_piece_are_read_whole(tmp_path: Path) -> None:
    text = "".join("abcdefgh"[i * i % 7] + ("\n" if i % 50_000 == 49_999 else "") for i in range(150_000))
    (tmp_path / "a").write_text(text)
    assert len(corpus(tmp_path).index) == len(text) + 2  # a seam on either side


def test_the_index_is_built_once_and_again_when_the_files_change(tmp_path: Path, monkeypatch: Any) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.txt").write_text("abcabd")
    assert corpus(docs).notes == []
    built: list[int] = []
    build = CorpusIndex.build

    def counted(texts: Any, vocab_size: int) -> CorpusIndex:
        built.append(1)
        return build(texts, vocab_size)

    monkeypatch.setattr(CorpusIndex, "build", counted)
    assert (
        propose(corpus(docs), ToyCodec().encode("gab"), 1).tokens
        == propose(corpus(docs), ToyCodec().encode("ab"), 1).tokens
    )
    assert built == []
    (docs / "a.txt").write_text("abeabe")  # no longer and no shorter
    changed = corpus(docs)
    assert built == [1]
    assert "changed since it was indexed" in changed.notes[0]
    assert propose(changed, ToyCodec().encode("ab"), 1).tokens == tuple(ToyCodec().encode("e"))
    assert corpus(docs).notes == []


def test_a_damaged_index_is_built_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcabd")
    corpus(tmp_path / "a.txt")
    (order,) = (tmp_path / "cache" / "corpus").glob("*/order.npy")
    order.write_bytes(order.read_bytes()[:-3])
    assert propose(corpus(tmp_path / "a.txt"), ToyCodec().encode("gab"), 1).tokens


def test_the_cache_keeps_few_indexes(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"{i}.txt").write_text("abc" * (i + 1))
        corpus(tmp_path / f"{i}.txt")
    assert len(list((tmp_path / "cache" / "corpus").iterdir())) == 8


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / ".git").mkdir(parents=True)
    (docs / ".git" / "x").write_text("abc")
    (docs / "a.txt").write_text("abc" * 100)
    (docs / "b.bin").write_bytes(b"ab\0c")
    (docs / "c.txt").write_bytes(b"ab\xff")
    (docs / "d.txt").write_text("abc\n" * 400_000)
    (docs / "d1.txt").write_text("abc\n" * 150_000)
    (docs / "d2.txt").write_text("abc\n" * 150_000)
    (docs / "e.txt").write_text("fade")
    (docs / "gone").symlink_to(docs / "nothing")
    os.mkfifo(docs / "pipe")
    drafter = corpus(docs, megabytes=1)
    assert any("b.bin is binary, c.txt is binary" in note for note in drafter.notes)
    assert any("d.txt, d2.txt" in note and "1 MB" in note for note in drafter.notes)
    assert len(drafter.index) == 300 + 600_000 + 4 + 4
    assert not any("\n" in note for note in drafter.notes)
    assert corpus(docs, megabytes=1).notes == drafter.notes, "said again when the index comes from the cache"


@pytest.mark.parametrize("content", [None, b"", b"\0\1\2", b"\xff\xfe\xfa", b"???"], ids=str)
def test_a_path_without_text_is_one_line(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    if content is not None:
        path.write_bytes(content)
    for where in (path, tmp_path / "folder"):
        with pytest.raises(DraftError) as caught:
            corpus(where)
        assert str(where) in str(caught.value)
        assert "\n" not in str(caught.value)
        (tmp_path / "folder").mkdir(exist_ok=True)
    result = invoke("run", "abc", "--draft", f"kind=corpus,path={path}")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)


def test_a_device_is_no_corpus() -> None:
    with pytest.raises(DraftError, match="no files"):
        corpus(Path("/dev/zero"))


def test_bad_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc")
    for options in ({"megabytes": 0}, {"megabytes": 257}, {"max": 0}, {"max_match": 1, "min_match": 2}):
        with pytest.raises(DraftError):
            corpus(tmp_path, **options)
    with pytest.raises(DraftError, match="needs path"):
        create_drafter("corpus", codec=ToyCodec())


def test_on_the_command_line_notes_are_on_stderr_and_the_text_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("abcdefgh. " * 20)
    (tmp_path / "docs" / "b.png").write_bytes(b"\x89PNG\0\0")
    options = ("run", "abc", "--max-tokens", "30", "-t", "0.8", "--seed", "3")
    drafted = invoke(*options, "--draft", f"kind=corpus,path={tmp_path / 'docs'}")
    assert drafted.code == 0, drafted.err
    assert drafted.out == invoke(*options, "--draft", "none").out
    assert "b.png is binary" in drafted.err


def knowing(answers: Sequence[Sequence[int]]) -> CorpusDrafter:
    """A drafter whose corpus is exactly these tokens (the toy's text cannot be tokenized back)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").write_text("abc")
        drafter = CorpusDrafter(path=folder, codec=ToyCodec())
    drafter.index = CorpusIndex.build(answers, V)
    return drafter


@given(options=samplings, running=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_it_changes_nothing(options: dict[str, Any], running: int) -> None:
    want = plain(PROMPTS, options)
    answers = [list(answer[1])[i:] for i, answer in enumerate(want)]
    engine = toy_engine(knowing([*answers, [1, 2, 3, 1, 2, 4]]), max_running=running)
    got = engine.generate_many(PROMPTS, **options)
    assert [visible(c) for c in got] == want
    check_counts(got)
    check_free(engine)


def test_text_of_the_corpus_is_foreseen() -> None:
    """A control for the law above: where the answer is in the corpus, most of it is drafted."""
    answer = toy_engine().generate(PROMPTS[0], max_tokens=80, ignore_eos=True)
    again = toy_engine(knowing([answer.token_ids])).generate(PROMPTS[0], max_tokens=80, ignore_eos=True)
    assert again.token_ids == answer.token_ids
    assert again.speculation.acceptance_length > 3
    assert again.speculation.accepted > 40
