"""Pictures on the torch target: the model's own rows, the laws with pictures in texts, and what is refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_sight import CONTEXT, V, asking, build_sight, id_of, opened_engine, png
from tiny_torch import open_target

from sooner.chat import ChatTemplate
from sooner.control.fixed import FixedController
from sooner.draft.ngram import NgramDrafter
from sooner.engine import Engine
from sooner.errors import InvalidRequest
from sooner.media import text_of
from sooner.pictures import PictureToken, read_served
from sooner.protocols import Context, Drafter, Seeing
from sooner.server.reading import Reader
from sooner.server.schema import ChatBody
from sooner.server.settings import Settings
from sooner.server.switch import DraftSwitch
from sooner.types import Draft, Work

pytestmark = pytest.mark.convert

OPTIONS: dict[str, Any] = {"max_tokens": 10, "seed": 5, "logprobs": 2, "ignore_eos": True}


@pytest.fixture(scope="module", params=["llava", "qwen2_vl", "idefics3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sight(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def target(folder: Path) -> Any:
    return open_target(folder, context=CONTEXT)


@pytest.fixture
def opened(folder: Path, target: Any) -> Iterator[Any]:
    def make(drafter: Drafter | None = None) -> Engine:
        engine: Engine = opened_engine(folder, target, drafter=drafter, controller=FixedController(4))
        return engine

    yield make
    assert target.slots.free == target.slots.count


def seen(answer: Any) -> Any:
    return answer.token_ids, answer.logprobs


def test_rows_are_those_of_the_models_own_forward(target: Any, folder: Path, opened: Any) -> None:
    import torch
    import transformers

    from sooner.targets.torch.eyes import _image, open_processor

    own = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    engine = opened()
    shown = asking(png(1), png(2, 56, 32))
    ids = engine.request(shown).prompt
    text = engine.template.render([{**shown[0], "content": [{"type": "image"}] * 2 + shown[0]["content"][2:]}])
    images = [_image(png(1)), _image(png(2, 56, 32))]
    given = open_processor(folder)(
        text=[text], images=images, return_tensors="pt", add_special_tokens=False, return_mm_token_type_ids=True
    )
    if "image_grid_thw" not in given:
        given.pop("mm_token_type_ids")
    mark = target.picture_mark
    assert [mark if isinstance(t, PictureToken) else t for t in ids] == given["input_ids"][0].tolist()
    with torch.inference_mode():
        wanted = own(**given).logits[0, -1].numpy()
    session = target.open(ids[:-5])
    target.score([Work(session, ids[len(session.tokens) : -5], logits=False)])
    rows = target.score([Work(session, ids[-5:])])[0].logits
    session.close()
    assert np.abs(rows[0] - wanted).max() < 1e-3 * wanted.std()
    session = target.open()  # the control: the same places without the pictures
    blind = target.score([Work(session, tuple(0 if isinstance(t, PictureToken) else t for t in ids))])[0].logits
    session.close()
    assert np.abs(blind[0] - wanted).max() > 0.1 * wanted.std()


class Watching:
    """Keeps the contexts it was shown; drafts nothing, or ids beyond the vocabulary."""

    name = "watching"

    def __init__(self, token: int | None = None) -> None:
        self.texts: list[list[int]] = []
        self.places: list[int] = []
        self._token = token

    def propose(self, contexts: Any) -> list[Draft]:
        for context in contexts:
            self.note(context)
        if self._token is None:
            return [Draft()] * len(contexts)
        return [Draft((self._token,), (-1,), (1.0,), ("watching",))] * len(contexts)

    def note(self, context: Context) -> None:
        self.texts.append(list(context.tokens))
        self.places.append(len(context.tokens) - context.prompt_length)

    def observe(self, step: Any, rows: Any) -> None:
        assert len(step.draft) == 0

    def forget(self, id: int) -> None:
        pass


def test_a_drafted_id_beyond_the_vocabulary_is_never_a_picture(opened: Any) -> None:
    prompts = [asking(png(1)), asking(), asking(png(2), png(1))]
    plain = [seen(opened().generate(prompt, **OPTIONS)) for prompt in prompts]
    assert plain[0] != plain[1]  # the control: a text with a picture is another
    assert [seen(answer) for answer in opened(Watching(V + 3)).generate_many(prompts, **OPTIONS)] == plain


def test_drafters_see_the_text_alone_at_its_own_positions(opened: Any) -> None:
    watching = Watching()
    engine = opened(watching)
    request = engine.request(asking(png(1)), **{**OPTIONS, "max_tokens": 5})
    answer = engine.generate(asking(png(1)), **{**OPTIONS, "max_tokens": 5})
    assert len(text_of(request.prompt)) < len(request.prompt)
    assert watching.texts[0] == [*text_of(request.prompt), answer.token_ids[0]]
    assert watching.places == sorted(watching.places)
    assert watching.places[0] == 1


def test_a_picture_is_read_again_from_the_cache_and_another_is_not(opened: Any) -> None:
    engine = opened()
    ids = engine.request(asking(png(1))).prompt
    first = next(i for i, token in enumerate(ids) if isinstance(token, PictureToken))
    engine.generate(asking(png(1)), **OPTIONS)
    again = engine.generate(asking(png(1)), **OPTIONS)
    other = engine.generate(asking(png(9)), **OPTIONS)
    assert again.usage.cached_tokens == len(ids) - 1
    assert other.usage.cached_tokens == first
    assert seen(other) == seen(opened().generate(asking(png(9)), **OPTIONS))


def test_what_cannot_be_seen_is_refused_before_anything_runs(opened: Any, target: Any, tmp_path: Path) -> None:
    engine = opened()
    for picture, said in (
        (png(1)[:60], "cannot be read"),
        (b"no picture", "cannot be read"),
        ("https://example.org/cat.png", "fetches no pictures"),
        (str(tmp_path / "none.png"), "check the path"),
        ("data:image/png;base64,@@", "no valid base64"),
        ("", "without a picture"),
    ):
        with pytest.raises(InvalidRequest, match=said) as refused:
            engine.request(asking(picture))
        assert "\n" not in str(refused.value)
    name = next(name for name in ("<image>", "<|image_pad|>") if id_of(name) == target.picture_mark)
    with pytest.raises(InvalidRequest, match="1 images and 2 places"):
        engine.request(asking(png(1), text=f"a {name} b"))
    with pytest.raises(InvalidRequest, match="no picture"):
        engine.submit(engine.request([5, target.picture_mark, 6]))
    with pytest.raises(InvalidRequest, match="outside"):  # the number of a picture's token is no picture
        engine.submit(engine.request([5, int(engine.request(asking(png(1))).prompt[-20]) + V, 6]))
    assert not engine.busy


def test_paths_and_urls_are_one_picture(opened: Any, tmp_path: Path) -> None:
    file = tmp_path / "a picture.png"
    file.write_bytes(png(1))
    data = "data:image/png;base64," + base64.b64encode(png(1)).decode()
    engine = opened()
    forms = [file, str(file), file.as_uri(), data, png(1)]
    assert len({engine.request(asking(form)).prompt for form in forms}) == 1


def test_a_server_takes_data_urls_and_no_files_but_a_folders(opened: Any, tmp_path: Path) -> None:
    engine = opened()
    (tmp_path / "in").mkdir()
    for place in ("in/a.png", "b.png"):
        (tmp_path / place).write_bytes(png(1))
    data = "data:image/png;base64," + base64.b64encode(png(1)).decode()

    def asked(url: str, folder: Path | None) -> Any:
        part = {"type": "image_url", "image_url": {"url": url}}
        text = {"type": "text", "text": "what is it it is it"}
        body = ChatBody.model_validate({"messages": [{"role": "user", "content": [part, text]}]})
        return (
            Reader(engine, DraftSwitch(None, lambda specs: NgramDrafter()), Settings(pictures=folder))
            .chat(body, "")
            .requests[0]
            .prompt
        )

    wanted = engine.request(asking(png(1))).prompt
    assert asked(data, None) == wanted
    assert asked((tmp_path / "in/a.png").as_uri(), tmp_path / "in") == wanted
    for url, folder in (
        ((tmp_path / "in/a.png").as_uri(), None),
        (str(tmp_path / "in/a.png"), tmp_path / "in"),
        ((tmp_path / "b.png").as_uri(), tmp_path / "in"),
        (f"file://{tmp_path}/in/../b.png", tmp_path / "in"),
        ("http://127.0.0.1:1/a.png", None),
    ):
        with pytest.raises(InvalidRequest, match="this server"):
            asked(url, folder)


def test_a_text_model_says_that_it_takes_no_images() -> None:
    with pytest.raises(InvalidRequest, match="takes none"):
        ChatTemplate("{{ messages[0].content }}").render(asking(png(1)))
    assert not isinstance(object(), Seeing)
    with pytest.raises(InvalidRequest, match="no files"):
        read_served("/etc/hostname", "messages")
