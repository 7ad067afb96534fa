"""The invariance law with pictures in texts, over every drafter that can be had for them, and what must be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_sight import CONTEXT, asking, build_sight, build_words, letters, opened_engine, png
from tiny_torch import open_target

from sooner.control.fixed import FixedController
from sooner.draft.oracle import OracleDrafter
from sooner.engine import Engine
from sooner.loading import make_drafter
from sooner.media import text_of
from sooner.protocols import Drafter
from sooner.text import Tokenizer
from sooner.train.table import build_table
from test_engine_laws import visible
from toy import FlickerController, TreeDrafter

pytestmark = pytest.mark.convert
pytest.importorskip("torch", exc_type=ImportError)  # the plain suite collects this file, too

from sooner.targets.torch import sight  # noqa: E402  # torch first

WORDS = "abcabcabcabc"
PROMPTS = [asking(png(1), text=WORDS), asking(text=WORDS), asking(png(2, 56, 32), png(1), text=WORDS)]
SHOWING = (0, 2)
"""The prompts that have pictures."""

MODEL_FREE = ("ngram", "suffix", "recycle", "memory", "given", "table", "corpus", "tree", "oracle", "random", "cascade")
FAMILIES = {"qwen2_vl": MODEL_FREE, "llava": ("suffix", "tree"), "idefics3": ("suffix", "tree")}
"""All drafters where pictures move what follows; elsewhere some."""

TEMPERATURES = (0.0, 0.8)
CASES = [(family, t, kind) for family, kinds in FAMILIES.items() for t in TEMPERATURES for kind in kinds]


class Texts:
    """The prompts answered at one temperature, in letters, so that texts are tokenised as they were written."""

    def __init__(self, folder: Path, target: Any, temperature: float) -> None:
        self.folder, self.target = folder, target
        self.codec = Tokenizer.load(folder)
        bias = dict.fromkeys(letters(self.codec), 100.0)
        self.options: dict[str, Any] = {"max_tokens": 14, "seed": 5, "logprobs": 2, "ignore_eos": True}
        self.options |= {"temperature": temperature, "logit_bias": bias}
        self.plain = [self.ask([prompt], running=1)[0] for prompt in PROMPTS]

    def engine(self, drafter: Drafter | None = None, controller: Any = None, **options: Any) -> Engine:
        controller = controller or FixedController(6)
        engine: Engine = opened_engine(self.folder, self.target, drafter=drafter, controller=controller, **options)
        return engine

    def ask(self, prompts: Any, drafter: Any = None, *, running: int = 4, chunk: int = 256, **more: Any) -> list[Any]:
        engine = self.engine(drafter, max_running=running, chunk=chunk, controller=more.pop("controller", None))
        return engine.generate_many(prompts, **self.options, **more)

    def truth(self) -> dict[tuple[int, ...], list[int]]:
        """The answers by what a drafter sees of their prompts."""
        engine = self.engine()
        return {
            tuple(text_of(engine.request(prompt).prompt)): list(answer.token_ids)
            for prompt, answer in zip(PROMPTS, self.plain, strict=True)
        }


class Sights:
    """Everything that is opened once: models by family, and their plain texts."""

    def __init__(self, place: Callable[[str], Path]) -> None:
        self._place = place
        self._models: dict[str, tuple[Path, Any]] = {}
        self._words: dict[str, Any] = {}
        self._texts: dict[tuple[str, float], Texts] = {}

    def model(self, family: str) -> tuple[Path, Any]:
        if family not in self._models:
            folder = build_sight(family, self._place(family))
            self._models[family] = folder, open_target(folder, context=CONTEXT)
        return self._models[family]

    def words(self, family: str) -> Any:
        """The family's language model as a model for text alone."""
        if family not in self._words:
            folder = build_words(self.model(family)[0], self._place("words"))
            self._words[family] = open_target(folder, context=CONTEXT)
        return self._words[family]

    def texts(self, family: str, temperature: float) -> Texts:
        key = family, temperature
        if key not in self._texts:
            self._texts[key] = Texts(*self.model(family), temperature)
        return self._texts[key]

    def check(self) -> None:
        """Every place in a cache is free."""
        for target in (*(target for _, target in self._models.values()), *self._words.values()):
            assert target.slots.free == target.slots.count


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Sights:
    return Sights(tmp_path_factory.mktemp)


@pytest.fixture
def sights(opened: Sights) -> Iterator[Sights]:
    yield opened
    opened.check()


def drafter_of(kind: str, texts: Texts, place: Path) -> Any:
    if kind == "tree":
        return TreeDrafter(1, texts.truth(), vocab_size=texts.target.vocab_size)
    if kind == "oracle":
        return OracleDrafter(texts.truth(), rate=0.2)
    spec = {"cascade": "cascade", "given": "given", "memory": "memory"}.get(kind, f"kind={kind}")
    if kind == "table":
        build_table([((), a.token_ids) for a in texts.plain], model="", min_count=1).save(place / "table.npz")
        spec = f"kind=table,path={place / 'table.npz'}"
    if kind == "corpus":
        (place / "corpus.txt").write_text("\n".join(a.text for a in texts.plain))
        spec = f"kind=corpus,path={place / 'corpus.txt'},min_match=1"
    return make_drafter(spec, texts.target, texts.codec, "")


@pytest.mark.parametrize(("family", "temperature", "kind"), CASES)
def test_no_drafter_changes_a_text_with_pictures(
    family: str, temperature: float, kind: str, sights: Sights, tmp_path: Path
) -> None:
    """Alone and beside a text without one, prompts cut in the middle of a picture or not."""
    texts = sights.texts(family, temperature)
    want = [visible(answer) for answer in texts.plain]
    expected: dict[str, Any] = {"expected": texts.plain[0].text} if kind == "given" else {}
    drafter = drafter_of(kind, texts, tmp_path)
    if kind in ("memory", "recycle", "cascade"):  # which remember the first time
        assert [visible(answer) for answer in texts.ask(PROMPTS, drafter)] == want
    beside = texts.ask(PROMPTS, drafter, chunk=16, **expected)
    assert [visible(answer) for answer in beside] == want
    assert [visible(answer) for answer in texts.ask([PROMPTS[2]], drafter, running=1, **expected)] == [want[2]]
    if kind not in ("random", "recycle"):  # nothing is tested where nothing is accepted; recycle knows no bias
        assert sum(beside[i].speculation.accepted for i in SHOWING) > 0


@pytest.mark.parametrize(
    ("family", "temperature", "width"), [(f, t, w) for f in FAMILIES for t, w in zip(TEMPERATURES, (1, 3), strict=True)]
)
def test_a_draft_model_for_text_alone_changes_nothing_and_is_followed(
    family: str, temperature: float, width: int, sights: Sights
) -> None:
    texts, words = sights.texts(family, temperature), sights.words(family)
    want = [visible(answer) for answer in texts.plain]
    spec = f"kind=model,path=words,width={width},thrifty=no"
    drafter = make_drafter(spec, texts.target, texts.codec, "", opening=lambda path: (words, texts.codec))
    beside = texts.ask(PROMPTS, drafter, chunk=16)
    assert [visible(answer) for answer in beside] == want
    assert sum(beside[i].speculation.accepted for i in SHOWING) > 0
    assert [visible(answer) for answer in texts.ask([PROMPTS[0]], drafter, running=1)] == [want[0]]


def test_a_budget_that_flickers_and_a_batch_that_is_full_change_nothing(sights: Sights) -> None:
    texts = sights.texts("qwen2_vl", 0.8)
    drafter = TreeDrafter(2, texts.truth(), vocab_size=texts.target.vocab_size)
    answers = texts.ask(PROMPTS, drafter, chunk=16, running=2, controller=FlickerController(7, seed=2))
    assert [visible(answer) for answer in answers] == [visible(answer) for answer in texts.plain]


def _one_for_all() -> Callable[[Any], Any]:
    """Rows of the picture that was looked up first, for every picture."""
    seen: list[Any] = []

    def row(token: Any) -> Any:
        seen.append(token.picture)
        return seen[0].rows[token.place % len(seen[0].rows)]

    return row


@pytest.mark.parametrize("fault", ["another picture's rows", "pictures in the cache move nothing"])
def test_a_target_that_mistakes_pictures_is_caught(fault: str, sights: Sights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the tests above."""
    texts = sights.texts("qwen2_vl", 0.8)
    if fault.startswith("another"):
        monkeypatch.setattr(sight, "_own_row", _one_for_all())
    else:
        monkeypatch.setattr(sight, "_shift", lambda session, held: 0)
    drafter = TreeDrafter(1, texts.truth(), vocab_size=texts.target.vocab_size)
    answers = texts.ask(PROMPTS, drafter, chunk=16)
    assert [visible(answer) for answer in answers] != [visible(answer) for answer in texts.plain]
