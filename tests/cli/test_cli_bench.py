"""``sooner bench`` on a toy: the table, the files, the exit codes, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from commandline import InterruptedTarget, Toy, invoke
from sooner.targets.toy import ToyTarget
from toy import V

OPTIONS = ("--max-tokens", "24", "--ignore-eos")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "q.jsonl"
    lines = [
        {"question_id": i, "category": "writing" if i % 2 else "qa", "turns": ["abcdefgh"[i % 8 :] + "ab"]}
        for i in range(1, 21)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_the_table_by_category(questions: str) -> None:
    result = invoke("bench", questions, "--per-category", "4", *OPTIONS)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    names = [line.split()[0] for line in lines[lines.index(next(li for li in lines if li.startswith("writing"))) :]]
    assert names == ["writing", "plain", "cascade", "qa", "plain", "cascade", "all", "plain", "cascade"]
    assert all(len(line) <= 80 for line in lines)


def test_files_and_evaluation_only(questions: str, tmp_path: Path) -> None:
    out = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "markdown")}
    files = [word for kind, path in out.items() for word in (f"--{kind}", str(path))]
    configs = ("--config", "suffix@4", "--config", "random@2", "--rounds", "2")
    result = invoke("bench", questions, "--evaluation-only", *configs, *files, *OPTIONS, "-t", "0.7", "--seed", "3")
    assert result.code == 0, result.err
    record = json.loads(out["json"].read_text())
    assert {item for run in record["runs"] for item in run["items"]} == {"5", "7", "10", "14", "15", "20"}
    assert [run["configuration"] for run in record["runs"][:3]] == ["plain", "suffix@4", "random@2"]
    assert (record["rounds"], record["identical"], record["interrupted"]) == (2, True, False)
    assert (record["sampling"]["temperature"], record["sampling"]["seed"]) == (0.7, 3)
    assert record["machine"]["versions"]["sooner"]
    assert len(list(csv.DictReader(out["csv"].read_text().splitlines()))) == len(record["runs"]) == 6 * 3 * 2
    assert out["markdown"].read_text().count("| suffix@4 |") == 3


def test_one_result_can_go_to_stdout_in_place_of_the_table(questions: str) -> None:
    result = invoke(
        "bench", questions, "--per-category", "1", "--draft", "suffix", "--budget", "4", "--json", "-", *OPTIONS
    )
    record = json.loads(result.out)
    assert [f["configuration"] for f in record["figures"][:2]] == ["plain", "suffix@4"]


def test_batches(questions: str) -> None:
    result = invoke("bench", questions, "--per-category", "6", "--batch", "4", "--json", "-", *OPTIONS)
    assert result.code == 0, result.err
    assert {len(run["items"]) for run in json.loads(result.out)["runs"]} == {4, 2}


def test_a_target_whose_drafted_text_differs_is_caught(questions: str) -> None:
    """Negative control: exit code 1, and no speed-up is named."""
    toy = Toy(lambda: ToyTarget(V, row_dependent=True, sharpness=0.5))
    result = invoke("bench", questions, "--per-category", "4", "--draft", "random", *OPTIONS, load=toy)
    assert result.code == 1
    assert "texts DIFFER" in result.out
    assert "NOT identical: under random" in result.err
    assert "sooner doctor" in result.err


def test_a_budget_beyond_a_pass_is_clipped_by_name_too(questions: str) -> None:
    options = ("--per-category", "1", "--json", "-", *OPTIONS)
    for drafting in (("--config", "random@5000"), ("--draft", "random", "--budget", "5000")):
        result = invoke("bench", questions, *drafting, *options)
        assert [f["configuration"] for f in json.loads(result.out)["figures"][:2]] == ["plain", "random@255"]
        assert result.err.count("more than a pass takes: it is 255") == 1


def test_ctrl_c_keeps_what_is_known(questions: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    toy = Toy(lambda: InterruptedTarget(400))
    result = invoke("bench", questions, "--draft", "random", "--json", str(out), *OPTIONS, load=toy)
    assert result.code == 130
    record = json.loads(out.read_text())
    assert record["interrupted"] is True
    assert 4 < len(record["runs"]) < 40


def test_prompts_too_long_for_the_model_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("abc\n" + "abc" * 400 + "\n")
    result = invoke("bench", str(path), *OPTIONS)
    assert result.code == 0
    assert "warning: prompt 2 is left out" in result.err
    path.write_text("abc" * 400)
    result = invoke("bench", str(path), *OPTIONS)
    assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.txt",), "cannot be read"),
        (("-", "--evaluation-only"), "divisible by 5 or 7"),
        (("-", "--config", "suffix", "--budget", "3"), "leave out --draft and --budget"),
        (("-", "--config", "plain"), "leaves nothing to compare"),
        (("-", "--config", "sufix"), "names no drafter 'sufix'"),
        (("-", "--draft", "none"), "leaves nothing to compare"),
        (("-", "--csv", "x", "--json", "x"), "a file of its own"),
        (("-", "--json", "/nonexistent/x"), "cannot be written"),
        (("-", "--batch", "9"), "--batch"),
        (("-", "-t", "-1"), "--temperature must be"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(arguments: tuple[str, ...], message: str) -> None:
    toy = Toy()
    result = invoke("bench", *arguments, stdin=b"abc\n", load=toy)
    assert (result.code, result.out) == (2, "")
    assert message in " ".join(result.err.split())
    assert len(result.err.splitlines()) == 1
    assert toy.loads == 0


@pytest.mark.parametrize("stdin", [b"", b"\n\n", b"\xff\xfe\x00"])
def test_input_without_prompts_is_refused(stdin: bytes) -> None:
    result = invoke("bench", "-", stdin=stdin)
    assert result.code == 2
    assert "holds no prompts" in result.err or "not UTF-8" in result.err
