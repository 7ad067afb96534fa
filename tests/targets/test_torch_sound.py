"""Whisper on the torch target: what transformers' generate writes, the laws with sounds, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_pair import mix_sources
from tiny_sound import CONTEXT, RATE, V, asking, build_sound, engine_over, heard, id_of, own, tones, wav, written
from tiny_torch import fresh, grown, open_target

from sooner.completion import Completion
from sooner.draft.model import ModelDrafter
from sooner.draft.self import SelfDrafter
from sooner.draft.suffix import SuffixDrafter
from sooner.engine import Engine
from sooner.errors import ContextOverflow, DraftError, InvalidRequest, SoonerError, TargetError
from sooner.media import text_of
from sooner.prompt import SoundTemplate
from sooner.protocols import Hearing
from sooner.sounds import SoundToken
from sooner.targets.torch.kept import Kept
from sooner.text import Tokenizer
from sooner.types import ROOT, Work
from test_engine_laws import visible
from toy import FlickerController, ToyCodec, TreeDrafter

pytestmark = pytest.mark.convert
pytest.importorskip("torch", exc_type=ImportError)  # the plain suite collects this file, too

from sooner.targets.torch.cross import Crossing  # noqa: E402  # torch first

SOUNDS = [tones("abc"), tones("hgfedc", korean=True), tones("dada"), tones("b", korean=True), tones("faceg")]
OPTIONS: dict[str, Any] = {"max_tokens": 16, "seed": 5, "logprobs": 2, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sound(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def target(folder: Path) -> Any:
    return open_target(folder, context=CONTEXT)


@pytest.fixture
def opened(folder: Path, target: Any) -> Iterator[Any]:
    def make(drafter: Any = None, *, running: int = 4, **how: Any) -> Engine:
        target.decoder.slots.purge()
        return engine_over(target, folder, drafter, max_running=running, **how)

    yield make
    assert target.decoder.slots.free == target.decoder.slots.count


@pytest.mark.filterwarnings("ignore")  # of generate, about the settings that OpenAI's models have
def test_the_text_is_that_of_transformers_own_generate(folder: Path, opened: Any) -> None:
    model, extractor = own(folder)
    engine = opened()
    texts = []
    for asked in ({}, {"language": "ko"}, {"language": "english", "task": "translate"}, {"task": "translate"}):
        for sound in SOUNDS:
            found = engine.generate(asking(sound, **asked), max_tokens=16)
            assert [token for token in found.token_ids if token != 256] == written(model, extractor, sound, **asked)
            texts.append(found.text)
    assert len(set(texts)) > len(SOUNDS), "sounds or tasks have one text"


@pytest.mark.filterwarnings("ignore")
def test_text_beside_a_sound_is_what_was_said_before_it(folder: Path, opened: Any) -> None:
    import torch

    model, extractor = own(folder)
    engine = opened()
    message = asking(SOUNDS[0])
    message[0]["content"].append({"type": "text", "text": "hag cab"})
    before = [id_of("<|startofprev|>"), *b" hag cab"]
    prompt = engine.request(message).prompt
    assert list(prompt[1:]) == [*before, id_of("<|startoftranscript|>"), *prompt[-3:]]
    found = engine.generate(message, max_tokens=16)
    want = written(model, extractor, SOUNDS[0], prompt_ids=torch.tensor(before))
    assert [token for token in found.token_ids if token != 256] == want


def test_what_the_model_never_writes_is_not_written(target: Any, opened: Any) -> None:
    """Against the check itself: without the bans, the likeliest first token is one of them."""
    bans = target.ears.bans
    assert bans.first == (32, 256)
    assert ord("z") in bans.never
    engine = opened()
    silence = {"array": np.zeros(RATE // 10), "sampling_rate": RATE}
    prompt = engine.request(asking(silence)).prompt
    session = target.open()
    row = target.score([Work(session, prompt)])[0].logits[0].copy()
    session.close()
    best = int(row.argmax())
    target.ears.bans = type(bans)(never=(best,))
    try:
        assert best not in opened().generate(asking(silence), max_tokens=8, ignore_eos=True).token_ids
    finally:
        target.ears.bans = bans
    allowed = [token for token in range(V) if token not in (*bans.never, *bans.first)]
    first = opened().generate(asking(silence), max_tokens=1, ignore_eos=True).token_ids[0]
    assert first == allowed[int(row[allowed].argmax())]


def texts(engine: Engine, prompts: list[Any], **more: Any) -> list[Any]:
    return [visible(c) for c in engine.generate_many(prompts, **{**OPTIONS, **more})]


def followed(found: list[Completion]) -> tuple[int, int]:
    """Drafted tokens that were accepted, and all of them."""
    accepted, drafted = (sum(getattr(c.speculation, name) for c in found) for name in ("accepted", "drafted"))
    return accepted, drafted


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_no_draft_budget_batch_or_cache_changes_a_bit(target: Any, opened: Any, temperature: float) -> None:
    assert target.row_invariant, target.fingerprint
    prompts = [asking(sound) for sound in SOUNDS]
    options = {"temperature": temperature}
    want = texts(opened(running=1), prompts, **options)
    assert len({w[1] for w in want}) > 1
    engine = opened()
    assert texts(engine, prompts, **options) == want
    assert texts(engine, prompts, **options) == want  # from the cache
    shown = [tuple(text_of(engine.request(prompt).prompt)) for prompt in prompts]
    drafter = TreeDrafter(1, {s: list(w[1]) for s, w in zip(shown, want, strict=True)}, vocab_size=V)
    for drafting, how in (
        (drafter, {"running": 3}),
        (drafter, {"controller": FlickerController(7, seed=2)}),
        (SuffixDrafter(), {}),
        (SelfDrafter(target, eos_ids=(256,)), {"running": 2}),
    ):
        found = opened(drafting, **how).generate_many(prompts, **{**OPTIONS, **options})
        assert [visible(c) for c in found] == want
        accepted, drafted = followed(found)
        assert accepted > 0, drafting.name
    assert accepted == drafted, "the target itself was not followed"


def test_sounds_that_are_heard_while_others_are_written_change_nothing(opened: Any) -> None:
    """Encoder and language run in the callers' threads, beside the engine's passes."""
    engine = opened()
    prompts = [asking(tones("abcdefgh"[i % 8 :][:3], korean=i % 2 == 1, seed=i)) for i in range(12)]
    want = [visible(engine.generate(prompt, **OPTIONS)) for prompt in prompts]
    again = opened()
    again.target.ears._kept = Kept(again.target.ears._kept.next)  # it has heard nothing
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda prompt: visible(again.generate(prompt, **OPTIONS)), prompts))
    assert found == want
    assert len({w[1] for w in want}) > 1


@pytest.mark.parametrize("locked", [True, False])
def test_a_language_that_is_listened_for_in_the_middle_of_a_pass_waits_for_its_end(
    locked: bool, target: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not locked, a negative control: the pass finds that the model was run by somebody else."""
    ears, prompt = target.ears, asking(SOUNDS[1])
    [want] = texts(opened(), [prompt])
    engine, heard = opened(), ears.attend(SOUNDS[2])
    language = ears._language(heard)
    own, waiting, found = ears._port._turn, threading.Event(), list[int]()
    other = threading.Thread(target=lambda: found.append(ears._language(heard)))

    class Turn:
        def __enter__(self) -> None:
            if threading.current_thread() is other:
                waiting.set()
            if locked:
                own.acquire()

        def __exit__(self, *_: Any) -> None:
            if locked:
                own.release()

    cross = Crossing.cross

    def interrupted(self: Crossing, *given: Any) -> Any:
        if other.ident is None:
            other.start()
            waiting.wait() if locked else other.join()
        return cross(self, *given)

    monkeypatch.setattr(ears._port, "_turn", Turn())
    monkeypatch.setattr(Crossing, "cross", interrupted)
    if locked:
        assert texts(engine, [prompt]) == [want]
    else:
        with pytest.raises(SoonerError, match="run by somebody else"):
            engine.generate(prompt, **OPTIONS)
    other.join()
    assert found == [language]


def test_the_check_sees_a_neighbours_sound(target: Any, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: every text of a pass reads the first one's sound."""
    prompts = [asking(sound) for sound in SOUNDS]
    want = texts(opened(running=1), prompts)
    mix_sources(target, monkeypatch)
    assert texts(opened(), prompts) != want


@pytest.mark.parametrize("seed", range(2))
def test_the_cache_is_a_pure_function_of_its_tokens(target: Any, opened: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = [list(opened().request(asking(sound)).prompt) for sound in SOUNDS[:2]]
    session = target.open(salt="wander")
    held: list[int] = []
    for _ in range(8):
        fed = tuple(rng.integers(0, V, int(rng.choice([1, 2, 5]))).tolist())
        fed = fed if held[1:] else (*held[:1], *prompts[int(rng.integers(2))][len(held) :])[len(held) :]
        work = Work(session, fed, grown(rng, 5))
        rows = target.score([work])[0].logits.copy()
        assert np.array_equal(rows, fresh(target, held, work)), f"rows after {len(held)} tokens"
        path = work.draft.path(int(rng.integers(ROOT, len(work.draft))))
        session.settle(path)
        held += [*fed, *(work.draft.tokens[i] for i in path)]
        if rng.random() < 0.4:
            held = held[: int(rng.choice([0, 1, 3, len(held) - 1]))]
            session.sync(held)
        assert list(session.tokens) == held
    session.close()


def test_a_sound_is_read_again_from_the_cache_and_another_is_not(opened: Any, target: Any) -> None:
    engine = opened()
    ids = engine.request(asking(SOUNDS[0])).prompt
    engine.generate(asking(SOUNDS[0]), **OPTIONS)
    again = engine.generate(asking(SOUNDS[0]), **OPTIONS)
    other = engine.generate(asking(SOUNDS[2]), **OPTIONS)
    assert again.usage.cached_tokens == len(ids) - 1
    assert other.usage.cached_tokens <= 1  # the sound itself was encoded when the request was built
    assert again.token_ids != other.token_ids
    samples = {"array": heard(SOUNDS[0]), "sampling_rate": RATE}
    assert engine.request(asking(samples)).prompt == ids
    assert engine.request(asking(SOUNDS[2])).prompt[0] != ids[0]


def test_sounds_are_encoded_once_and_forgotten_with_their_texts(opened: Any, target: Any) -> None:
    import gc

    engine = opened()
    seen: list[Any] = []
    states = target.ears._port.states

    def watched(given: Any) -> Any:
        seen.append(given)
        return states(given)

    target.ears._port.states = watched
    try:
        for _ in range(3):
            engine.generate(asking(tones("aha", seed=77)), **OPTIONS)
        assert len(seen) == 1
        for seed in range(30):
            engine.request(asking(tones("a", seed=100 + seed)))
    finally:
        del target.ears._port.states
    gc.collect()
    assert len(target._kept) <= target.decoder.slots.count
    assert len(target.ears._kept) <= 8 + target.decoder.slots.count


def test_drafters_see_the_text_alone(opened: Any) -> None:
    seen: list[Any] = []

    class Looking(SuffixDrafter):
        def propose(self, contexts: Any) -> Any:
            seen.extend((tuple(c.tokens), c.prompt_length, tuple(c.sounds), c.bans) for c in contexts)
            return super().propose(contexts)

    engine = opened(Looking())
    prompt = engine.request(asking(SOUNDS[0])).prompt
    engine.generate(asking(SOUNDS[0]), **OPTIONS)
    tokens, length, sounds, bans = seen[0]
    assert tokens[:length] == prompt[1:]
    assert sounds == prompt[:1]
    assert bans.first == (32, 256)


def drafting(target: Any, draft: Any, said: list[str]) -> ModelDrafter:
    codec = ToyCodec()
    return ModelDrafter(
        "draft",
        open_model=lambda _: (draft, codec),
        target=target,
        codec=codec,
        thrifty=False,
        width=1,
        say=said.append,
    )


def test_a_draft_model_listens_by_itself_or_with_the_targets_ears(folder: Path, opened: Any, tmp_path: Path) -> None:
    prompts = [asking(sound) for sound in SOUNDS]
    want = texts(opened(running=1), prompts)
    small = build_sound(tmp_path / "small", seed=3, steps=20, decoder_layers=1)
    for path, twin in ((folder, True), (small, False)):
        said: list[str] = []
        target, draft = open_target(folder, context=CONTEXT), open_target(path, context=CONTEXT)
        engine = opened(drafting(target, draft, said))
        engine.target = engine.batch._target = target
        engine.template = SoundTemplate(target, engine.codec)
        found = engine.generate_many(prompts, **OPTIONS)
        assert engine.warning is None
        assert [visible(c) for c in found] == want
        accepted, drafted = followed(found)
        assert drafted > 0
        assert (accepted == drafted) == twin
        assert ("which reads every source once for both" in said[-1]) == twin, said


def test_draft_models_that_cannot_serve_are_refused(target: Any, folder: Path) -> None:
    class Deaf:
        vocab_size, context = V, 64

    with pytest.raises(DraftError, match="the target takes none"):
        drafting(Deaf(), target, [])
    with pytest.raises(DraftError, match="needs the target's vocabulary"):
        ModelDrafter(
            "draft",
            open_model=lambda _: (target, ToyCodec()),
            target=target,
            codec=Tokenizer.load(folder),
        )


def refused(engine: Engine, prompt: Any, words: str, kind: type[Exception] = InvalidRequest, **options: Any) -> None:
    with pytest.raises(kind, match=words) as caught:
        engine.submit(engine.request(prompt, **options))
    assert "\n" not in str(caught.value)
    assert not engine.busy


def test_what_cannot_be_heard_is_refused_before_anything_runs(opened: Any, target: Any, tmp_path: Path) -> None:
    engine = opened()
    good, part = wav(SOUNDS[0]), asking(SOUNDS[0])[0]["content"][0]
    refused(engine, "write it down", "there is no sound: give one in the user's message")
    refused(engine, "write it down", "has no sound", raw=True)
    refused(engine, [5, 6, 7], "has no sound")
    refused(engine, [V, 6, 7], "has no sound")  # the number of a sound's token is no sound
    refused(engine, [{"role": "user", "content": [part, part]}], "2 sounds and the model hears one")
    refused(engine, [{"role": "system", "content": "be brief"}, *asking(good)], "follows no instructions")
    refused(engine, [{"role": "user", "content": [part, {"type": "image", "image": "a.png"}]}], "one sound and text")
    refused(engine, asking(SOUNDS[0], language="xx"), "no language 'xx': it has en, ko")
    refused(engine, asking(SOUNDS[0], task="sing"), "no task 'sing': it has transcribe, translate")
    refused(engine, asking(str(tmp_path / "none.wav")), "there is no sound .*: check the path")
    refused(engine, asking("https://example.org/talk.wav"), "fetches no sounds")
    refused(engine, asking(good[:-100]), "ends 100 bytes too early")
    long = {"array": np.zeros(RATE + 1, dtype=np.float32), "sampling_rate": RATE}
    refused(engine, asking(long), "hears 1 s at a time: cut it", ContextOverflow)
    ids = list(engine.request(asking(good)).prompt)
    refused(engine, ids[:1], "lacks the decoder's first token")
    refused(engine, [ids[0], *ids], "two sounds")
    refused(engine, asking(good), "calls no functions", tools=[{"type": "function"}])
    refused(engine, [*ids, *[97] * CONTEXT], "the context holds", ContextOverflow)
    stranger = SoundToken(int(ids[0]), type("", (), {"owner": object()})())
    refused(engine, [stranger, *ids[1:]], "another model heard")
    session = target.open()
    with pytest.raises(TargetError, match="a source is longer"):
        target.score([Work(session, (5, 6))])
    session.close()


def test_a_target_without_ears_says_so(opened: Any) -> None:
    from sooner.chat import ChatTemplate
    from toy import toy_engine

    prompt = opened().request(asking(SOUNDS[0])).prompt
    with pytest.raises(InvalidRequest, match="takes no sound"):
        toy_engine().submit(toy_engine().request(prompt))
    with pytest.raises(InvalidRequest, match="has a sound and this model takes none"):
        ChatTemplate("{{ messages[0].content }}").render(asking(SOUNDS[0]))
    assert not isinstance(toy_engine().target, Hearing)
