"""``sooner train`` on a toy model: what it prints, where it writes, what it refuses, Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import pytest

from commandline import InterruptedTarget, Toy, invoke
from sooner.draft.table import SuccessorTable
from sooner.train.collect import read_texts
from sooner.train.make import collection_path

SMALL = ("--tokens", "200", "--max-tokens", "30")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))


def test_one_line_says_what_was_made_and_how_to_use_it(tmp_path: Path) -> None:
    out = tmp_path / "t.npz"
    load = Toy()
    result = invoke("train", *SMALL, "-o", str(out), "--batch", "3", "--seed", "5", load=load)
    assert (result.code, result.err) == (0, "")
    assert result.out.count("\n") == 1
    assert f"{SuccessorTable.load(out).contexts:,} contexts" in result.out
    assert f"--draft kind=table,path={out}" in result.out
    assert load.options["max_running"] == 3
    options = ("run", "abc", "--max-tokens", "40", "-t", "0.8", "--seed", "3")
    drafted = invoke(*options, "--draft", f"kind=table,path={out}")
    assert drafted.out == invoke(*options, "--draft", "none").out


def test_without_out_it_goes_where_it_is_found(tmp_path: Path) -> None:
    result = invoke("train", "--kind", "table", *SMALL)
    assert result.code == 0, result.err
    (table,) = (tmp_path / "cache" / "tables").glob("*.npz")
    assert table.stem == SuccessorTable.load(table).model[:16]
    assert "from now on" in result.out


def test_a_bar_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert "collecting" in invoke("train", *SMALL, "-o", str(tmp_path / "t"), terminal=True).err


def test_ctrl_c_keeps_what_was_collected_and_the_same_command_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "t.npz"
    command = ("train", "--tokens", "600", "--max-tokens", "30", "--batch", "1", "-o", str(out))
    result = invoke(*command, load=Toy(lambda: InterruptedTarget(90)))
    assert (result.code, result.out, result.err.count("\n")) == (130, "", 1)
    assert str(collection_path(out)) in result.err
    kept = list(read_texts(collection_path(out)))
    assert kept
    assert not out.exists()
    assert invoke(*command).code == 0
    assert not collection_path(out).exists()


def test_prompts_of_the_user_from_a_file_or_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "abc"}\n{"turns": ["fade"]}\n{"messages": [{"role": "user", "content": "bead"}]}\n')
    assert invoke("train", str(file), *SMALL, "-o", str(tmp_path / "a")).code == 0
    piped = invoke("train", "-", *SMALL, "-t", "0", "-o", str(tmp_path / "b"), stdin=b"abc\nfade\n")
    assert piped.code == 0
    assert "prompts ran out" in piped.out
    trace = tmp_path / "trace"
    assert invoke("run", "abc", "--max-tokens", "20", "--trace", str(trace)).code == 0
    assert invoke("train", str(trace), *SMALL, "-o", str(tmp_path / "c")).code == 0


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (b"", ()),
        (b"\n \n", ()),
        (b"\xff\xfe", ()),
        (b'{"x": 1}\n', ()),
        (b"???\n", ()),
        (None, ()),
        (b"abc\n", ("-o", ".")),
        (b"abc\n", ("-o", "/nowhere/t.npz")),
        (b"abc\n", ("-t", "-1")),
        (b"abc\n", ("--tokens", "0")),
        (b"abc\n", ("--kind", "tail")),
        (b"abc\n", ("--step", "fit")),
        (b"abc\n", ("--hours", "1")),
        (b"abc\n", ("--layers", "4")),
        (b"abc\n", ("--kind", "head", "--layers", "4")),
        (b"abc\n", ("--kind", "draft", "--layers", "0")),
    ],
)
def test_bad_input_is_one_line(content: bytes | None, options: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    if content is not None:
        file.write_bytes(content)
    result = invoke("train", str(file), *SMALL, "-o", str(tmp_path / "t.npz"), *options)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
    assert not list(tmp_path.glob("t.npz*"))


@pytest.mark.parametrize("kind", ["head", "draft"])
def test_fitting_needs_its_extra_and_says_so_before_a_model_is_loaded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sooner.train.workshop.find_spec", lambda name: None)
    result = invoke("train", "--kind", kind, "-o", str(tmp_path / "made"))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert 'pip install "sooner[train]"' in result.err
    assert not list(tmp_path.iterdir())
