"""Conversations about pictures, what is refused of them, and the same through the server and the command line."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tiny_sight import CONTEXT, asking, build_sight, letters, opened_engine, png
from tiny_torch import open_target

from commandline import Result, invoke
from listening import listening_with
from sooner.control.fixed import FixedController
from sooner.draft.suffix import SuffixDrafter
from sooner.engine import Engine
from sooner.errors import ContextOverflow, InvalidRequest, TargetError
from sooner.server import Settings
from test_engine_laws import visible

pytestmark = pytest.mark.convert
pytest.importorskip("torch", exc_type=ImportError)  # the plain suite collects this file, too

from sooner.targets.torch import eyes  # noqa: E402  # torch first

WORDS = "abcabcabc"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sight("qwen2_vl", tmp_path_factory.mktemp("qwen2_vl"))


@pytest.fixture(scope="module")
def target(folder: Path) -> Any:
    return open_target(folder, context=CONTEXT)


@pytest.fixture
def engine(folder: Path, target: Any) -> Iterator[Engine]:
    yield opened_engine(folder, target, drafter=SuffixDrafter(), controller=FixedController(4))
    assert target.slots.free == target.slots.count


def options(engine: Engine, tokens: int = 12) -> dict[str, Any]:
    """In letters, so that an answer in the next turn is the tokens that were written."""
    bias = dict.fromkeys(letters(engine.codec), 100.0)
    return {"max_tokens": tokens, "ignore_eos": True, "seed": 3, "logprobs": 1, "logit_bias": bias}


def test_turns_about_a_picture_read_it_once(
    engine: Engine, folder: Path, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    encode = eyes.Eyes._encoded

    def noted(self: eyes.Eyes, image: Any) -> Any:
        looked.append(image)
        return encode(self, image)

    monkeypatch.setattr(eyes.Eyes, "_encoded", noted)
    talk: list[Any] = asking(png(31), text=WORDS)
    answers = []
    for turn in range(3):
        answers.append(engine.generate(talk, **options(engine)))
        talk = [*talk, {"role": "assistant", "content": answers[-1].text}]
        talk += asking(*([png(32)] if turn == 1 else []), text=f"{WORDS}{turn}")
    assert len(looked) == 2
    for before, after in pairwise(answers):
        held = before.usage.prompt_tokens + len(before.token_ids) - 1
        assert after.usage.cached_tokens >= held
    assert visible(answers[-1]) == visible(opened_engine(folder, target).generate(talk[:-2], **options(engine)))
    other = [{**talk[0], "content": asking(png(33), text=WORDS)[0]["content"]}, *talk[1:-2]]
    assert engine.generate(other, **options(engine)).usage.cached_tokens < 12  # another picture is not this one


def test_pictures_that_were_taken_for_one_another_would_be_noticed(
    engine: Engine, folder: Path, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: pictures whose tokens have the same ids are found as each other's cached prefix."""
    want = visible(engine.generate(asking(png(42), text=WORDS), **options(engine)))
    mistaken = opened_engine(folder, target)
    first = target.eyes.see
    bases: list[int] = []

    def alike(data: bytes) -> Any:
        picture = first(data)
        bases.append(picture.base)
        return eyes.Picture(**{**vars(picture), "base": bases[0]})

    monkeypatch.setattr(target.eyes, "see", alike)
    mistaken.generate(asking(png(41), text=WORDS), **options(engine))
    assert visible(mistaken.generate(asking(png(42), text=WORDS), **options(engine))) != want


def test_pictures_too_large_for_anything_are_refused_alone(
    engine: Engine, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of these harms a text that runs."""
    handle = engine.submit(engine.request(asking(png(1), text=WORDS), **options(engine)))
    engine.step()
    with pytest.raises(ContextOverflow, match="show fewer or smaller ones"):
        engine.request(asking(*map(png, range(100, 160)), text=WORDS))
    with monkeypatch.context() as patch:
        patch.setattr(type(target), "context", property(lambda self: 8))
        with pytest.raises(ContextOverflow, match="the picture takes 15 tokens and the context holds 8"):
            engine.request(asking(png(1)))
    with monkeypatch.context() as patch:
        patch.setattr(eyes, "_MOST_PIXELS", 900)
        with pytest.raises(InvalidRequest, match="has 40 x 24 pixels"):
            engine.request(asking(png(1)))
    with monkeypatch.context() as patch:
        patch.setattr(target.eyes, "_reach", _out_of_memory)
        with pytest.raises(TargetError, match="out of memory over a picture of 40 x 24"):
            engine.request(asking(png(77)))
    with monkeypatch.context() as patch:
        patch.setattr(target.eyes, "_reach", _confused)
        with pytest.raises(InvalidRequest, match="cannot take this picture"):
            engine.request(asking(png(78)))
    while engine.busy:
        engine.step()
    alone = engine.generate(asking(png(1), text=WORDS), **options(engine))
    assert visible(engine.completion(handle)) == visible(alone)


def _out_of_memory(inputs: Any) -> Any:
    raise MemoryError


def _confused(inputs: Any) -> Any:
    raise ValueError("features do not match")


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def body(*urls: str, text: str = WORDS, **more: Any) -> dict[str, Any]:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}], "seed": 3, **more}


BAD: list[tuple[str, list[str], str]] = [
    ("no picture", [url_of(b"no picture")], "cannot be read"),
    ("half a picture", [url_of(png(1)[:60])], "cannot be read"),
    ("no base64", ["data:image/png;base64,@@"], "no valid base64"),
    ("an address", ["https://example.org/cat.png"], "fetches no pictures"),
    ("a file", ["file:///etc/passwd"], "reads no files"),
    ("no data", ["data://[x"], "data URL"),
    ("no address", ["http://[x"], "fetches no pictures"),
    ("no file", ["file:///%00"], "reads no files"),
    ("nothing", [""], "at least 1 character"),
    ("too many", [url_of(png(i)) for i in range(200, 260)], "show fewer or smaller ones"),
]


def test_image_urls_over_http_and_bad_ones_beside_an_answer_that_goes_on(engine: Engine) -> None:
    bias = {str(token): 100.0 for token in letters(engine.codec)}
    asked: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "temperature": 0.8, "logit_bias": bias}

    async def test(address: str) -> None:
        async with httpx2.AsyncClient(base_url=f"{address}/v1", timeout=120) as http:
            post = http.post
            long = asyncio.create_task(post("/chat/completions", json=body(url_of(png(1)), **asked)))
            for what, urls, said in BAD:
                reply = await post("/chat/completions", json=body(*urls, max_tokens=4))
                assert (reply.status_code, what) == (400, what)
                assert said in reply.json()["error"]["message"], what
                assert reply.json()["error"]["param"], what
            mark = await post("/chat/completions", json=body(url_of(png(1)), text="<|image_pad|>"))
            assert mark.status_code == 400
            assert "1 images and 2 places" in mark.json()["error"]["message"]
            beside = await long
            assert beside.status_code == 200
            again = await post("/chat/completions", json=body(url_of(png(1)), **asked))
            plain = await post("/chat/completions", json=body(url_of(png(1)), draft="none", **asked))
            other = await post("/chat/completions", json=body(url_of(png(2)), **asked))
            texts = [reply.json()["choices"][0]["message"]["content"] for reply in (beside, again, plain, other)]
            assert texts[0] == texts[1] == texts[2] != texts[3]
            assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 12

    with listening_with(engine) as (address, _):
        asyncio.run(test(address))


def test_a_model_with_eyes_takes_larger_bodies(engine: Engine) -> None:
    noise = png(1, 700, 700)
    assert 1 << 20 < len(url_of(noise)) < 4 << 20
    with listening_with(engine) as (address, _):
        reply = httpx2.post(f"{address}/v1/chat/completions", json=body(url_of(noise), max_tokens=2), timeout=120)
        assert reply.status_code == 200, reply.text
    with listening_with(engine, Settings(max_body=1 << 20)) as (address, _):
        reply = httpx2.post(f"{address}/v1/chat/completions", json=body(url_of(noise), max_tokens=2), timeout=120)
        assert reply.status_code == 413
        assert "--max-body" in reply.json()["error"]["message"]


@pytest.fixture
def commanded(engine: Engine) -> Any:
    """``sooner COMMAND ...`` with this engine."""

    def command(name: str, *arguments: str, stdin: bytes = b"") -> Result:
        return invoke(name, *arguments, "--max-tokens", "6", stdin=stdin, load=lambda model, **more: engine)

    return command


def test_the_command_line_shows_pictures(commanded: Any, tmp_path: Path) -> None:
    for seed in (1, 2):
        (tmp_path / f"{seed}.png").write_bytes(png(seed))
    one, two = (str(tmp_path / f"{seed}.png") for seed in (1, 2))
    answers = {}
    for name, images in {
        "path": [one],
        "url": [Path(one).as_uri()],
        "data": [url_of(png(1))],
        "both": [one, two],
    }.items():
        flags = [word for image in images for word in ("--image", image)]
        said: dict[str, Any] = {"stdin": f"{WORDS}\n".encode()} if name == "url" else {}
        words = () if said else (WORDS,)
        result = commanded("run", *words, *flags, "--json", "--ignore-eos", "--seed", "1", "-t", "1", **said)
        assert result.code == 0, result.err
        answers[name] = json.loads(result.out)
    ids = {name: answer["token_ids"] for name, answer in answers.items()}
    assert ids["path"] == ids["url"] == ids["data"]
    assert answers["both"]["usage"]["prompt_tokens"] > answers["path"]["usage"]["prompt_tokens"] + 12


def test_a_picture_that_is_none_is_one_line(commanded: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    result = commanded("run", WORDS, "--image", str(tmp_path / "a.png"))
    assert result.code == 2
    assert "the picture cannot be read" in result.err
    assert "Traceback" not in result.err


def test_a_conversation_in_a_terminal_shows_pictures(commanded: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    said = f"/image {tmp_path}/a.png\nabc\nabc\n/stats\n/save {tmp_path}/talk.json\n/save {tmp_path}/talk.txt\n"
    result = commanded("chat", stdin=said.encode())
    assert result.code == 0, result.err
    talk = json.loads((tmp_path / "talk.json").read_text())
    assert [part["type"] for part in talk[0]["content"]] == ["image_url", "text"]
    assert talk[0]["content"][0]["image_url"]["url"] == url_of(png(1))
    assert talk[2]["content"] == "abc"
    assert (tmp_path / "talk.txt").read_text().startswith("user: [picture] abc\n")
    cached = int(result.err.split(" of them from the cache")[0].rsplit(" ", 1)[1])
    assert cached > 12


def test_a_trace_of_a_text_with_a_picture_is_written_and_read(commanded: Any, engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    trace = str(tmp_path / "a.jsonl")
    assert commanded("run", WORDS, "--image", str(tmp_path / "a.png"), "--ignore-eos", "--trace", trace).code == 0
    for words in (("show",), ("stats",)):
        result = invoke("trace", *words, trace)
        assert result.code == 0, result.err
    result = invoke("trace", "verify", trace, load=lambda model, **more: engine)
    assert result.code == 2
    assert "pictures and sounds, which traces do not keep" in result.err
