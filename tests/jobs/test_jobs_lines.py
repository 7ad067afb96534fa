"""Lines of prompts: every shape that is read, and what each broken one is dead of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sooner.errors import InvalidRequest
from sooner.jobs import Dead, Job, lines, read_jobs


def read(tmp_path: Path, data: str | bytes, system: str | None = None) -> list[Job | Dead]:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return list(read_jobs(path, system))


@pytest.mark.parametrize(
    ("line", "prompt", "name", "options"),
    [
        ({"prompt": "a"}, "a", "", {}),
        ({"text": "a", "id": 7, "topic": "x"}, "a", "7", {}),
        ({"question_id": 3, "category": "qa", "turns": ["a", "b"]}, "a", "3", {}),
        ({"prompt": [1, 2], "seed": 4, "stop": ["x"]}, [1, 2], "", {"seed": 4, "stop": ["x"]}),
        ({"prompt": "a", "logit_bias": {"3": 1.5}}, "a", "", {"logit_bias": {3: 1.5}}),
        (
            {
                "custom_id": "r1",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 5},
            },
            [{"role": "user", "content": "a"}],
            "r1",
            {"max_tokens": 5},
        ),
    ],
)
def test_shapes(tmp_path: Path, line: Any, prompt: Any, name: str, options: Any) -> None:
    (job,) = read(tmp_path, json.dumps(line))
    assert isinstance(job, Job)
    assert (job.prompt, job.id, dict(job.options)) == (prompt, name, options)


def test_plain_text_is_a_prompt_a_line_and_blank_lines_count(tmp_path: Path) -> None:
    found = read(tmp_path, "\ufeffone\r\n\n  \n{two}\nthree")
    assert [(job.line, job.prompt) for job in found if isinstance(job, Job)] == [(1, "one"), (4, "{two}"), (5, "three")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": ', "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"prompt": ""}', "no prompt"),
        (b'{"prompt": 3}', "no prompt"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "a", "temprature": 1}', "did you mean temperature"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "content must be a string"),
        (b'{"custom_id": "x", "body": 3}', "body must be an object"),
        (b'{"body": {"prompt": "a", "tools": [{}]}}', "sooner serve"),
        (b'{"prompt": ' + b"[" * 100_000, "not JSON"),
    ],
)
def test_what_broken_lines_are_dead_of(tmp_path: Path, line: bytes, reason: str) -> None:
    first, dead, last = read(tmp_path, b'{"prompt": "a"}\n' + line + b'\n{"prompt": "b"}\n')
    assert isinstance(first, Job)
    assert isinstance(last, Job)
    assert isinstance(dead, Dead)
    assert (dead.line, reason in dead.reason) == (2, True), dead.reason
    assert dead.raw.startswith(line[:8].decode("utf-8", "replace"))


def test_a_line_that_is_too_long_is_dead_and_never_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_LONGEST", 50)
    for length in (51, 100, 101, 102, 103, 500):
        dead, job = read(tmp_path, '{"prompt": "' + "x" * length + '"}\n{"prompt": "b"}')
        assert isinstance(dead, Dead)
        assert "longer than" in dead.reason
        assert isinstance(job, Job)
        assert (job.line, job.prompt) == (2, "b")


def test_a_system_message_goes_before_what_has_none(tmp_path: Path) -> None:
    own = [{"role": "system", "content": "mine"}, {"role": "user", "content": "a"}]
    shapes = [{"prompt": "a"}, {"messages": own}, {"messages": own[1:]}, {"prompt": "a", "raw": True}, {"prompt": [1]}]
    *found, dead = read(tmp_path, "\n".join(map(json.dumps, shapes)), system="told")
    told = [{"role": "system", "content": "told"}, {"role": "user", "content": "a"}]
    assert [job.prompt for job in found if isinstance(job, Job)] == [told, own, told, "a"]
    assert isinstance(dead, Dead)


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        list(read_jobs(tmp_path / name))
