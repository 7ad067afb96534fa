"""``sooner batch`` on a toy: order, dead lines, resuming after any end, and that neighbours change no answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commandline import InterruptedTarget, Toy, invoke

OPTIONS = ("--max-tokens", "12", "-t", "0.9", "--seed", "3", "--ignore-eos")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    lines = [
        json.dumps({"prompt": "abcdefgh"[i % 8 :] + "ab", "id": f"p{i}", "max_tokens": 4 + i % 9}) for i in range(20)
    ]
    lines[5], lines[11] = "{broken", json.dumps({"prompt": "ab", "temperature": -1})
    path.write_text("\n".join([*lines[:8], "", *lines[8:]]))
    return path


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_in_order_each_as_by_itself_and_dead_lines_beside(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    result = invoke("batch", str(prompts), "-o", str(out), *OPTIONS, "--draft", "random", "--batch", "3")
    assert result.code == 1, result.err
    found = records(out)
    assert [record["id"] for record in found] == [f"p{i}" for i in range(20) if i not in (5, 11)]
    dead = records(tmp_path / "a.errors.jsonl")
    assert [(entry["line"], entry["error"].split(" ")[0]) for entry in dead] == [(6, "not"), (13, "temperature")]
    assert "2 lines could not be answered" in result.err
    alone = invoke("run", "cdefghab", "--max-tokens", "6", "-t", "0.9", "--seed", "3", "--ignore-eos", "--json")
    assert json.loads(alone.out)["text"] == found[2]["text"]
    assert json.loads(alone.out)["usage"]["completion_tokens"] == found[2]["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("at", [1, 4, 9, 12])
def test_interrupted_anywhere_and_resumed_it_is_the_uninterrupted_file(prompts: Path, tmp_path: Path, at: int) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "a.jsonl"
    invoke("batch", str(prompts), "-o", str(whole), *OPTIONS, "--draft", "none")
    line = ("batch", str(prompts), "-o", str(out), *OPTIONS)
    first = invoke(*line, load=Toy(lambda: InterruptedTarget(at)))
    assert first.code == 130
    assert "--resume goes on there" in first.err
    second = invoke(*line, "--resume", "--draft", "suffix")  # a drafter changes no answer
    assert second.code == 1
    names = ("line", "id", "text", "finish_reason", "seed", "input", "run")
    texts = [[[record[name] for name in names] for record in records(path)] for path in (whole, out)]
    assert texts[0] == texts[1]
    assert (tmp_path / "a.errors.jsonl").read_text() == (tmp_path / "whole.errors.jsonl").read_text()


def test_what_is_refused(prompts: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "a.jsonl")
    line = ("batch", str(prompts), "-o", out, *OPTIONS)
    assert invoke(*line).code == 1
    for more, message in (
        ((), "--resume or --overwrite"),
        (("--resume", "--overwrite"), "leave one out"),
        (("--resume", "--top-k", "3"), "other options"),
        (("--raw", "-s", "x"), "leave one out"),
    ):
        result = invoke(*line, *more)
        assert (result.code, message in result.err) == (2, True), result.err
    loads = Toy()
    assert invoke(*line, load=loads).code == 2
    assert loads.loads == 0  # refused before a model is loaded
    prompts.write_text(prompts.read_text().replace("p19", "p20"))
    assert "has changed since" in invoke(*line, "--resume").err
    assert invoke("batch", str(tmp_path / "none"), "-o", out, "--overwrite").code == 2
    assert "Missing option" in invoke("batch", str(prompts)).err


def test_a_finished_file_resumed_stays_as_it_is(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    invoke("batch", str(prompts), "-o", str(out), *OPTIONS)
    before = out.read_bytes()
    result = invoke("batch", str(prompts), "-o", str(out), *OPTIONS, "--resume")
    assert (result.code, out.read_bytes()) == (1, before)  # two lines are still dead


def test_an_empty_file_gives_no_answers(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n\n")
    result = invoke("batch", str(tmp_path / "in"), "-o", str(tmp_path / "out.jsonl"))
    assert (result.code, "holds no prompts" in result.err) == (2, True)
