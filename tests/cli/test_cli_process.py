"""The installed command in processes of its own, on the default model: signals, pipes, speed of the help page."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sooner.store import ModelFiles

SOONER = str(Path(sys.executable).with_name("sooner"))
# A test run in a shell's background inherits an ignored SIGINT; a terminal's programs do not.
TERMINAL = [
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
]
STORY = ("run", "Write a long story about a dog.", "--max-tokens", "400", "--ignore-eos")


def sooner(*argv: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [SOONER, *argv], input=stdin, capture_output=True, timeout=120, check=False, env={**os.environ, **environment}
    )


def test_the_help_page_costs_little() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert sooner("--help").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.4


def test_stdin_json_and_the_figures(default_files: ModelFiles) -> None:
    result = sooner("run", "--json", "--max-tokens", "12", "--draft", "none", stdin=b"Say hello.\n")
    assert (result.returncode, result.stderr) == (0, b"")
    value = json.loads(result.stdout)
    assert value["text"]
    assert value["usage"]["completion_tokens"] == len(value["token_ids"]) <= 12
    assert value["fingerprint"]["model"] == default_files.sha256


def test_compare_finds_the_same_text(default_files: ModelFiles) -> None:
    prompt = "Repeat this: one two three four five six seven."
    result = sooner("run", prompt, "--compare", "1", "--max-tokens", "24")
    assert result.returncode == 0, result.stderr
    assert b"identical: yes" in result.stdout


def test_ctrl_c_ends_with_130_and_what_was_written(default_files: ModelFiles) -> None:
    process = subprocess.Popen([*TERMINAL, SOONER, *STORY], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    begin = b""
    while len(begin) <= 20:
        begin += os.read(process.stdout.fileno(), 100)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    text = begin + rest
    assert process.returncode == 130
    assert errors == b""
    assert len(text) > 20
    assert text.endswith(b"\n")


def test_a_closed_pipe_ends_it_quietly(default_files: ModelFiles) -> None:
    process = subprocess.Popen([SOONER, *STORY], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 1
    assert errors == b""


@pytest.mark.parametrize(("where", "code"), [(">&-", 0), ("2>&-", 0), ("<&-", 0), (">/dev/full", 2)])
def test_streams_that_are_closed_or_full(where: str, code: int) -> None:
    result = subprocess.run(["sh", "-c", f"{SOONER} explain --example {where}"], capture_output=True, check=False)
    assert result.returncode == code
    assert result.stderr.count(b"\n") == (1 if code else 0)


@pytest.mark.parametrize("content", [b"", b"GGUF\x03\0\0\0" + b"\xff" * 64], ids=["empty", "damaged"])
def test_files_that_are_no_models(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    result = sooner("run", "Hello", "-m", str(path), SOONER_CACHE=str(tmp_path / "cache"))
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.startswith(b"error: ")
    assert result.stderr.count(b"\n") == 1
