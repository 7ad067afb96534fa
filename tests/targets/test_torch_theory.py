"""``sooner bench --theory`` on an encoder-decoder model with a small draft, both trained here, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_pair import STEPS, train_pair, with_tokenizer
from tiny_torch import V

import sooner
from commandline import invoke
from sooner.bench import theory

pytestmark = pytest.mark.convert

LENGTHS = (1, 3)
COUNTED = 12


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    room = tmp_path_factory.mktemp("trained")
    train_pair(room / "t5", room / "small")
    return with_tokenizer(room / "t5"), with_tokenizer(room / "small")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path_factory.mktemp("cache")))


def prompts(path: Path) -> str:
    path.write_text("\n".join(f"w{2 + i // 2 % 2} w{4 + 10 * i % 60}" for i in range(8)))
    return str(path)


def test_the_models_know_two_languages(pair: tuple[Path, Path]) -> None:
    """Whatever is measured below is measured on texts that follow from their sources."""
    engine = sooner.load(str(pair[0]), backend="torch", device="cpu", draft=None)
    for language, step in enumerate(STEPS):
        found = engine.generate(f"w{2 + language} w30", max_tokens=COUNTED, temperature=0.0, ignore_eos=True)
        assert found.text.split() == [f"w{4 + (26 + step * i) % (V - 4)}" for i in range(COUNTED)]


@pytest.fixture(scope="module")
def record(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    room = tmp_path_factory.mktemp("theory")
    drafters = (f"kind=model,path={pair[1]}", "unigram", "bigram")
    result = invoke(
        *("bench", prompts(room / "prompts.txt"), "-m", str(pair[0]), "--backend", "torch", "--device", "cpu"),
        *("--theory", "--lengths", ",".join(map(str, LENGTHS)), "--max-tokens", "12", "--ignore-eos", "--json", "-"),
        *(word for name in drafters for word in ("--draft", name)),
        load=sooner.load,
    )
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_alpha_tells_drafters_apart(record: dict[str, Any]) -> None:
    alpha = {row["drafter"].split(",")[0]: row["alpha"] for row in record["acceptance"] if row["temperature"] == 0.0}
    assert 0.5 < alpha["kind=model"] < 1.0, "the small model knows one language"
    assert alpha["kind=model"] > alpha["unigram"]
    assert alpha["bigram"] > alpha["unigram"]


def test_predicted_tokens_are_those_of_the_law_and_of_the_steps(record: dict[str, Any]) -> None:
    """What the text bears out of guesses that were never scored is what is kept of them when they are."""
    assert len(record["lengths"]) == 3 * len(LENGTHS)
    for row in record["lengths"]:
        assert row["tokens"]["paper"] == pytest.approx(theory.tokens_per_step(row["alpha"], row["length"]))
        assert row["tokens"]["positions"] == pytest.approx(row["tokens"]["measured"])
        assert row["speed"]["paper"] == pytest.approx(theory.speed_up(row["tokens"]["paper"], row["length"], row["c"]))
    kept = {row["length"]: row["tokens"]["measured"] for row in record["lengths"] if "model" in row["drafter"]}
    assert kept[1] < kept[3], "longer drafts of a good model bring more tokens a pass"


def test_the_fingerprint_is_the_torch_targets(record: dict[str, Any]) -> None:
    assert record["fingerprint"]["engine"].startswith("torch ")
    assert record["texts"] == 4, "the others are counted"
