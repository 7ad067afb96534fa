"""Workload files: every format is read, whatever is wrong is refused by line and with a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sooner.bench.workload import for_evaluation, parse_workload, per_category, read_workload
from sooner.errors import InvalidRequest

QUESTIONS = "\n".join(
    json.dumps({"question_id": i, "category": "qa" if i % 2 else "rag", "turns": [f"ask {i}", "and then?"]})
    for i in range(1, 16)
)
HEADER = {"type": "header", "schema": 1, "prompt": [3, 4, 5], "fingerprint": {"model": "abc"}}


def test_spec_bench_questions_keep_category_and_first_turn() -> None:
    items = parse_workload(QUESTIONS, "q.jsonl")
    assert [(item.id, item.category, item.prompt) for item in items[:2]] == [
        ("1", "qa", "ask 1"),
        ("2", "rag", "ask 2"),
    ]
    assert [item.id for item in for_evaluation(items)] == ["5", "7", "10", "14", "15"]
    found = per_category(items, 3)
    assert {name: [item.id for item in group] for name, group in found.items()} == {
        "qa": ["1", "3", "5"],
        "rag": ["2", "4", "6"],
    }


def test_json_lines_with_prompt_text_or_messages() -> None:
    messages = [{"role": "user", "content": "hi"}]
    lines = [{"prompt": "a", "category": "x"}, {"text": "b", "id": "mine"}, {"messages": messages}]
    items = parse_workload("\n\n".join(map(json.dumps, lines)) + "\n", "p.jsonl")
    assert [(item.id, item.category, item.prompt) for item in items] == [
        ("1", "x", "a"),
        ("mine", "prompts", "b"),
        ("5", "prompts", messages),
    ]


def test_a_trace_counts_as_its_prompt_also_when_it_was_cut_off() -> None:
    trace = "\n".join([json.dumps(HEADER), json.dumps({"type": "step"}), '{"type": "st'])
    (item,) = parse_workload(trace, "t.jsonl")
    assert (item.prompt, item.model, item.category) == ([3, 4, 5], "abc", "trace")


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1), min_size=1, max_size=5))
def test_plain_text_is_one_prompt_a_line(lines: list[str]) -> None:
    lines[0] = lines[0].removeprefix("{") or "x"
    lines[0] = "x" + lines[0]
    assert [item.prompt for item in parse_workload("\n\n".join(lines) + "\r\n", "p.txt")] == lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompts: write one a line"),
        (" \n\n", "holds no prompts"),
        ('{"prompt": "a"}\nnonsense', "line 2, is not JSON"),
        ('{"prompt": "a"}\n[1]', "line 2, is not a JSON object"),
        ('{"prompt": ""}', "line 1, has no prompt"),
        ('{"turns": []}', "line 1, has no prompt"),
        ('{"messages": [{"role": "user"}]}', "line 1, has no prompt"),
        ('{"type": "header", "prompt": []}', "line 1, has no prompt"),
    ],
)
def test_what_is_wrong_is_said_by_line(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_workload(text, "file")


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(InvalidRequest, match="not UTF-8 text: convert it"):
        read_workload(str(latin))
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidRequest, match="cannot be read"):
            read_workload(str(path))
    with pytest.raises(InvalidRequest, match="leaves no prompt"):
        for_evaluation(parse_workload('{"prompt": "a", "id": 11}', "x"))
