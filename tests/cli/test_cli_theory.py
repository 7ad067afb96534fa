"""``sooner bench --theory`` on a toy: the tables, the record, the plots, and what is refused."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from commandline import invoke

OPTIONS = ("--theory", "--max-tokens", "40", "--ignore-eos", "--lengths", "1,3")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(letter * 3 for letter in "abcdefgh"))
    return str(path)


def test_predictions_stand_beside_measurement(prompts: str, tmp_path: Path) -> None:
    out = tmp_path / "theory.json"
    result = invoke("bench", prompts, *OPTIONS, "--draft", "suffix", "--draft", "bigram", "--json", str(out))
    assert result.code == 0, result.err
    assert all(word in result.out for word in ("alpha", "by position", "measured", "best length"))
    record = json.loads(out.read_text())
    assert [(row["drafter"], row["temperature"]) for row in record["acceptance"]] == [
        (name, temperature) for temperature in (0.0, 0.8, 1.0) for name in ("suffix", "bigram")
    ]
    assert [(row["drafter"], row["length"]) for row in record["lengths"]] == [
        ("suffix", 1),
        ("suffix", 3),
        ("bigram", 1),
        ("bigram", 3),
    ]
    for row in record["lengths"]:
        assert row["tokens"]["positions"] == pytest.approx(row["tokens"]["measured"])
    assert record["texts"] == 4, "the others are counted"


def test_json_takes_the_tables_place(prompts: str) -> None:
    result = invoke("bench", prompts, *OPTIONS, "--draft", "suffix", "--json", "-", "-t", "0.5")
    assert result.code == 0, result.err
    record = json.loads(result.out)
    assert {row["temperature"] for row in record["acceptance"]} == {0.0, 0.5, 0.8, 1.0}
    assert {row["temperature"] for row in record["lengths"]} == {0.5}


def test_plots_or_the_extra_that_they_need(prompts: str, tmp_path: Path) -> None:
    result = invoke("bench", prompts, *OPTIONS, "--draft", "suffix", "--plots", str(tmp_path / "plots"))
    if find_spec("matplotlib") is None:
        assert result.code == 2
        assert 'pip install "sooner[plots]"' in result.err
        assert result.out == "", "and says so before anything is measured"
    else:
        assert result.code == 0, result.err
        names = {path.name for path in (tmp_path / "plots").iterdir()}
        assert names == {f"theory-{name}.{kind}" for name in ("acceptance", "speed", "work") for kind in ("png", "svg")}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--config", "suffix@4"), "without a budget"),
        (("--config", "plain"), "one by one"),
        (("--draft", "cascade"), "one by one"),
        (("--draft", "nosuch"), "nosuch"),
        (("--batch", "2"), "leave out --batch"),
        (("--top-p", "0.5"), "leave out --top-p"),
        (("--csv", "x.csv"), "leave out --csv"),
        (("--lengths", "0,2"), "from 1 to 64"),
        (("--lengths", "some"), "from 1 to 64"),
    ],
)
def test_what_is_refused(prompts: str, more: tuple[str, ...], word: str) -> None:
    result = invoke("bench", prompts, *OPTIONS, *more)
    assert result.code == 2
    assert word in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_one_prompt_is_too_few_to_count(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("abc")
    result = invoke("bench", str(path), *OPTIONS, "--draft", "unigram")
    assert result.code == 2
    assert "at least two prompts" in result.err


def test_its_options_need_it(prompts: str) -> None:
    result = invoke("bench", prompts, "--lengths", "1,2")
    assert result.code == 2
    assert "--theory" in result.err
