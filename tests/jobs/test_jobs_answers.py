"""The answers' file: cut anywhere and resumed it is whole, and nobody else's file is touched."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from sooner.errors import InvalidRequest
from sooner.jobs import Answers, answers


def write(out: Path, numbers: range, dead: set[int], mode: str = "new") -> None:
    with Answers(out, mode) as kept:  # type: ignore[arg-type]  # a test's literal
        kept.begin("run")
        for number in numbers:
            if number <= kept.place.line:
                continue
            if number in dead:
                kept.bury(number, f"d{number}", "", "why", "é\ud800")
            else:
                kept.write(number, f"d{number}", {"text": f"안녕 {number}"})


def test_cut_at_any_byte_it_resumes_to_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_TAIL", 7)
    out, dead = tmp_path / "a.jsonl", tmp_path / "a.errors.jsonl"
    write(out, range(1, 5), {3})
    whole, buried = out.read_bytes(), dead.read_bytes()
    assert [json.loads(line)["line"] for line in whole.splitlines()] == [1, 2, 4]
    assert json.loads(buried)["raw"] == "é\ud800"
    for cut in range(len(whole)):  # the dead line 3 lies before line 4: a kill leaves the one or the other unfinished
        out.write_bytes(whole[:cut])
        dead.write_bytes(buried if whole[:cut].count(b"\n") == 2 else b"")
        write(out, range(1, 5), {3}, "resume")
        assert (out.read_bytes(), dead.read_bytes()) == (whole, buried), cut
    for cut in range(len(buried)):
        out.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
        dead.write_bytes(buried[:cut])
        write(out, range(1, 5), {3}, "resume")
        assert (out.read_bytes(), dead.read_bytes()) == (whole, buried), cut


def test_another_runs_answers_are_refused_unless_asked(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    write(out, range(1, 3), set())
    with pytest.raises(InvalidRequest, match="--resume or --overwrite"):
        write(out, range(1, 3), set())
    with Answers(out, "resume") as kept, pytest.raises(InvalidRequest, match="other options"):
        kept.begin("another run")
    write(out, range(1, 2), set(), "overwrite")
    assert out.read_text().count("\n") == 1


@pytest.mark.parametrize(
    "content", [b"precious notes", b'{"question": 1}\n{"question": 2}\nunfinished', b"\n\n", b"x\n"]
)
def test_a_strangers_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    out = tmp_path / "a.jsonl"
    out.write_bytes(content)
    with pytest.raises(InvalidRequest, match="not written by sooner batch"):
        Answers(out, "resume")
    assert out.read_bytes() == content
    assert list(tmp_path.iterdir()) == [out]


def test_overwriting_waits_until_there_is_something_to_write(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    write(out, range(1, 3), set())
    before = out.read_bytes()
    with Answers(out, "overwrite"):
        pass  # the model could not be loaded
    assert out.read_bytes() == before


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    with Answers(tmp_path / "a.jsonl"), pytest.raises(InvalidRequest, match="another run"):
        Answers(tmp_path / "a.jsonl")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for out in (tmp_path / "none" / "a.jsonl", tmp_path):
        with pytest.raises(InvalidRequest, match="cannot be written"), Answers(out) as kept:
            kept.begin("run")


class FullDisk:
    """A file on a disk without room: what was buffered fails again when it is closed."""

    def __init__(self, name: Path) -> None:
        self.name = str(name)

    def write(self, text: str) -> None:
        pass

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    close = flush


def test_a_full_disk_is_named_with_the_way_on(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    write(out, range(1, 3), set())
    whole = out.read_bytes()

    def fill() -> None:
        with Answers(out, "resume") as kept:
            kept.begin("run")
            kept._files[0].close()
            kept._files[0] = FullDisk(out)
            kept.write(3, "d3", {"text": "c"})

    with pytest.raises(InvalidRequest, match=r"No space left on device.+: make room, then --resume"):
        fill()
    write(out, range(1, 3), set(), "resume")
    assert out.read_bytes() == whole
