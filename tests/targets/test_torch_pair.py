"""Encoder-decoder models (T5, BART, Marian): the laws on sources and texts, and what transformers' generate writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_pair import END, PAIRS, build_pair, mix_sources, with_tokenizer
from tiny_torch import V, fresh, grown, open_target

import sooner
from sooner.control.fixed import FixedController
from sooner.draft.ngram import NgramDrafter
from sooner.engine import Engine
from sooner.errors import ContextOverflow, InvalidRequest, SoonerError, UnsupportedModel
from sooner.types import ROOT, Rows, Work
from test_engine_laws import visible
from toy import FlickerController, ToyCodec, TreeDrafter

pytestmark = pytest.mark.convert

SOURCES = [[5, 6, 7, 8], [9] * 20, [3], [10, 11, 12, 13, 14, 10, 11, 12]]
OPTIONS: dict[str, Any] = {"max_tokens": 24, "seed": 5, "logprobs": 2, "ignore_eos": True}


@pytest.fixture(scope="module", params=list(PAIRS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_pair(request.param, tmp_path_factory.mktemp("pairs") / request.param)


@pytest.fixture(scope="module")
def target(folder: Path) -> Any:
    return open_target(folder)


@pytest.fixture(autouse=True)
def _free(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "target" in request.fixturenames:
        slots = request.getfixturevalue("target").decoder.slots
        assert slots.free == slots.count


def prompts(target: Any) -> list[list[int]]:
    return [[*source, END, target._first] for source in SOURCES]


def texts(target: Any, drafter: Any = None, *, temperature: float, running: int, controller: Any = None) -> list[Any]:
    target.decoder.slots.purge()
    controller = controller or FixedController(6)
    engine = Engine(target, ToyCodec(), drafter=drafter, controller=controller, max_running=running, chunk=16)
    return [visible(c) for c in engine.generate_many(prompts(target), temperature=temperature, **OPTIONS)]


def test_the_text_is_that_of_transformers_own_generate(target: Any, folder: Path) -> None:
    import torch
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    different = set()
    for source, (_, tokens, *_) in zip(SOURCES, texts(target, temperature=0.0, running=1), strict=True):
        with torch.inference_mode():
            ids = torch.tensor([[*source, END]])
            found = model.generate(ids, max_new_tokens=24, do_sample=False, num_beams=1, eos_token_id=None)
        assert list(tokens) == found[0, 1:].tolist()
        different.add(tuple(tokens))
    assert len(different) > 1, "every source has one text: the encoder was not read"


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_no_draft_budget_batch_or_cache_changes_a_bit(target: Any, temperature: float) -> None:
    assert target.row_invariant, target.fingerprint
    want = texts(target, temperature=temperature, running=1)
    truth = {tuple(p): list(w[1]) for p, w in zip(prompts(target), want, strict=True)}
    assert texts(target, temperature=temperature, running=4) == want
    drafter = TreeDrafter(1, truth, vocab_size=V)
    assert texts(target, drafter, temperature=temperature, running=3) == want
    flicker = FlickerController(7, seed=2)
    assert texts(target, drafter, temperature=temperature, running=4, controller=flicker) == want
    assert texts(target, NgramDrafter(), temperature=temperature, running=4) == want


def test_the_check_sees_a_neighbours_source(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: every text of a pass reads the first one's source."""
    want = texts(target, temperature=0.0, running=1)
    mix_sources(target, monkeypatch)
    assert texts(target, temperature=0.0, running=4) != want


def wander(target: Any, seed: int, steps: int = 7) -> None:
    """Random passes, settlements, cuts into text and source, forks; every row equals that of a fresh session."""
    rng = np.random.default_rng(seed)
    session = target.open(salt="wander")
    held: list[int] = []
    for _ in range(steps):
        if END not in held:
            source = rng.integers(2, V, int(rng.integers(1, 7))).tolist()
            if rng.random() < 0.5:  # in two pieces, of which the first asks for nothing
                assert target.score([Work(session, tuple(source[:1]), logits=False)])[0].logits.shape == (0, V)
                held += source[:1]
                source = source[1:]
            fed = (*source, END, target._first)
        else:
            fed = tuple(rng.integers(0, V, int(rng.choice([1, 1, 2, 5]))).tolist())
        work = Work(session, fed, grown(rng, 7))
        rows = target.score([work])[0].logits.copy()
        assert np.array_equal(rows, fresh(target, held, work)), f"rows after {len(held)} tokens"
        held += fed
        if rng.random() < 0.8:
            path = work.draft.path(int(rng.integers(ROOT, len(work.draft))))
            session.settle(path)
            held += [work.draft.tokens[i] for i in path]
        if rng.random() < 0.3:
            keep = int(rng.integers(0, len(held) + 1))
            session.sync(held[:keep])
            held = list(session.tokens)
            assert len(held) == keep
        elif rng.random() < 0.3:  # a fork goes on, its origin ends
            fork = target.open(held, salt="wander")
            assert list(fork.tokens) == held
            session.close()
            session = fork
        assert list(session.tokens) == held
    session.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_cache_is_a_pure_function_of_its_tokens(target: Any, seed: int) -> None:
    wander(target, seed)


def reopened_rows_are_right(target: Any) -> bool:
    """Of one text behind two sources: whether the second's entries, found again, are its own."""
    text = (target._first, 5, 6, 7)
    for source in ([5, 6], [9, 9, 9]):
        session = target.open(salt="two")
        target.score([Work(session, (*source, END, *text))])
        session.close()
    held = [9, 9, 9, END, *text]
    session = target.open(held, salt="two")
    assert list(session.tokens) == held
    work = Work(session, (8,))
    rows = target.score([work])[0].logits.copy()
    session.close()
    return np.array_equal(rows, fresh(target, held, work))


def test_a_text_is_found_again_under_its_own_source(target: Any) -> None:
    assert reopened_rows_are_right(target)


def test_entries_shared_between_sources_are_caught(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    from sooner.targets.torch import source

    monkeypatch.setattr(source, "_key", lambda salt, tokens: salt)
    target.decoder.slots.purge()
    assert not reopened_rows_are_right(target)


def test_drafters_copy_from_the_source(tmp_path: Path) -> None:
    """The source is in what drafters see: its words are guessed before the text holds any of them."""
    target = open_target(build_pair("t5", tmp_path / "t5"))
    seen: list[tuple[int, ...]] = []

    class Looking(NgramDrafter):
        def propose(self, contexts: Any) -> Any:
            seen.extend(tuple(context.tokens) for context in contexts)
            return super().propose(contexts)

    prompt = [7, 8, 9, 10, END, 0]
    Engine(target, ToyCodec(), drafter=Looking(), controller=FixedController(4)).generate(prompt, max_tokens=3)
    assert seen[0][: len(prompt)] == tuple(prompt)


def refused(kind: type[SoonerError], words: str, engine: Engine, prompt: Any, **options: Any) -> None:
    with pytest.raises(kind, match=words) as caught:
        engine.generate(prompt, **options)
    assert "\n" not in str(caught.value)


def test_prompts_without_a_part_are_refused_before_a_pass(target: Any) -> None:
    engine = Engine(target, ToyCodec(), max_running=2)
    refused(InvalidRequest, "lacks the decoder's part: give the source, its end", engine, [5, 6, 7])
    refused(InvalidRequest, "lacks the decoder's part", engine, [5, 6, END])
    long = [5] * (target._longest + 1)
    refused(ContextOverflow, "the encoder reads", engine, [*long, END, 0])
    assert not engine.busy


def test_a_source_that_the_device_has_no_room_for_ends_alone(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    want = texts(target, temperature=0.0, running=1)
    encoder = target._runner.port.encoder
    monkeypatch.setattr(encoder, "forward", _full(encoder.forward))
    target._kept.clear()
    target.decoder.slots.purge()
    engine = Engine(target, ToyCodec(), max_running=4)
    handles = [engine.submit(engine.request(prompt, temperature=0.0, **OPTIONS)) for prompt in prompts(target)]
    while engine.busy:
        engine.step()
    for handle, source, text in zip(handles, SOURCES, want, strict=True):
        if len(source) > 10:
            assert "cpu is out of memory over a source: give a shorter one" in str(handle.error)
        else:
            assert visible(engine.completion(handle)) == text


def _full(forward: Any) -> Any:
    """An encoder that has no room for more than ten tokens."""
    import torch

    def encode(*, input_ids: Any, **how: Any) -> Any:
        if input_ids.shape[1] > 10:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(input_ids=input_ids, **how)

    return encode


def test_the_answer_ends_where_the_decoders_positions_do(target: Any) -> None:
    engine = Engine(target, ToyCodec(), drafter=TreeDrafter(1, vocab_size=V), controller=FixedController(6))
    found = engine.generate([5, 6, END, target._first], ignore_eos=True)
    assert found.finish.reason == "length"
    assert found.usage.completion_tokens == target.decoder.context


def test_penalties_look_at_the_text_not_at_its_source(target: Any) -> None:
    """transformers' penalty on encoder-decoder models does the same."""
    engine = Engine(target, ToyCodec(), max_running=2)
    request = engine.request([*range(2, V), END, target._first], repetition_penalty=2.0)
    assert engine._choice(request, 0, seed=0)._processor._prompt_ids == {target._first}


def test_text_in_text_out(tmp_path: Path) -> None:
    folder = with_tokenizer(build_pair("t5", tmp_path / "t5"))
    engine = sooner.load(str(folder), backend="torch", device="cpu", max_running=2)
    found = engine.generate("w5 w6 w7", max_tokens=8, ignore_eos=True)
    assert found.usage.prompt_tokens == 5
    ids = engine.generate([5, 6, 7, END, 0], max_tokens=8, ignore_eos=True)
    assert (found.text, found.token_ids) == (ids.text, ids.token_ids)
    assert found.text.startswith("w")
    plain = sooner.load(str(folder), backend="torch", device="cpu", draft=None, max_running=2)
    assert plain.generate("w5 w6 w7", max_tokens=8, ignore_eos=True).text == found.text


def test_what_is_not_done_is_refused_at_load(tmp_path: Path) -> None:
    import transformers

    folder = build_pair("t5", tmp_path / "t5")
    for option in ("strict", "compile"):
        with pytest.raises(InvalidRequest, match=f"{option} is for decoder-only models"):
            open_target(folder, **{option: True})
    transformers.Speech2TextConfig().save_pretrained(tmp_path / "speech")
    with pytest.raises(UnsupportedModel, match="use a model such as T5, BART or Whisper"):
        open_target(tmp_path / "speech")


def test_a_work_without_the_decoders_token_has_no_rows(target: Any) -> None:
    session = target.open()
    with pytest.raises(SoonerError, match="asks for rows of a source"):
        target.score([Work(session, (5, 6, END))])
    assert list(session.tokens) == []
    rows: Rows = target.score([Work(session, (5, 6, END, target._first))])[0]
    assert rows.logits.shape == (1, V)
    session.close()
