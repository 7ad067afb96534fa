"""Bad input at the command line: one line with the remedy, exit code 2, nothing half-written."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from commandline import Toy, invoke
from sooner.draft import known_kinds
from sooner.engine import Engine
from sooner.errors import CacheError, CorruptModel, ModelNotFound

TYPOS = {
    ("run", "a", "--draf", "x"): "did you mean --draft?",
    ("run", "a", "--tempreture", "1"): "did you mean --temperature?",
    ("run", "a", "--temp", "1"): "here it is --temperature",
    ("run", "a", "--max-new-tokens", "9"): "here it is --max-tokens",
    ("run", "a", "--num-speculative-tokens", "4"): "here it is --budget",
    ("rnu", "a"): "Did you mean 'run'?",
    ("models", "shwo", "x"): "Did you mean 'show'?",
    ("run", "a", "--draft", "sufix"): "did you mean suffix?",
    ("run", "a", "--verify", "copled"): "coupled, rejection, block",
}

REFUSED = {
    ("run", ""): "the prompt is empty",
    ("run", " \n "): "the prompt is empty",
    ("run", "a", "--max-tokens", "0"): "--max-tokens must be an integer of at least 1, not 0",
    ("run", "a", "-t", "-0.5"): "--temperature must be",
    ("run", "a", "-t", "hot"): "--temperature",
    ("run", "a", "--top-p", "1.5"): "--top-p must be in (0, 1]",
    ("run", "a", "--stop", ""): "--stop must be",
    ("run", "a", "--budget", "-1"): "--budget",
    ("run", "a", "-n", "0"): "error: -n must be",
    ("run", "a", "--precision", "int4"): "'auto', 'bf16', 'f32'",
    ("run", "a", "--draft", "ngram:mx=3"): "ngram has no option 'mx'",
    ("run", "a", "--draft", "ngram", "--draft", "none"): "stands alone",
    ("run", "a", "--draft", "ngram", "--speculative-config", '{"method": "ngram"}'): "keep one",
    ("run", "a", "--speculative-config", "{method: ngram}"): "not JSON",
    ("run", "a", "--speculative-config", '{"method": "eagel"}'): "the methods are",
    ("run", "a", "--file", "/no/such/file"): "cannot be read (No such file or directory)",
    ("run", "a", "--expected", "@/no/such/file"): "--expected /no/such/file cannot be read",
    ("run", "a", "--expected", "b", "--draft", "ngram"): "use --draft given",
    ("run", "a", "--trace", "/no/such/folder/t"): "cannot be written",
    ("run", "a", "--trace", "/"): "cannot be written (Is a directory)",
    ("run", "a", "--trace", "/dev/full"): "No space left",
    ("run", "a", "--logprobs", "2"): "add one of them",
    ("run", "a", "--raw", "-s", "b"): "leave one out",
    ("run", "a", "--compare", "--draft", "none"): "--compare needs a drafter",
    ("run", "a", "--compare", "--trace", "t"): "leave out --trace",
    ("run", "a" * 600): "the prompt has 600 tokens and the context holds 512",
    ("explain", "--example", "a"): "leave yours out",
    ("models", "show", "no-such-model"): "no model 'no-such-model'",
    ("doctor",): "doctor measures models",
}


@pytest.mark.parametrize("argv", [*TYPOS, *REFUSED], ids=lambda argv: " ".join(argv)[:40])
def test_one_line_with_the_remedy(argv: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    result = invoke(*argv)
    assert result.code == 2
    assert result.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", result.err)
    assert {**TYPOS, **REFUSED}[argv] in result.err
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]


@pytest.mark.parametrize(
    "argv", [a for a in REFUSED if a[0] == "run" and "--trace" not in a and len(a[1]) < 500 and "mx" not in str(a)]
)
def test_nothing_is_loaded_for_bad_input(argv: tuple[str, ...]) -> None:
    toy = Toy()
    assert invoke(*argv, load=toy).code == 2
    assert toy.loads == 0


@pytest.mark.parametrize(
    "error", [ModelNotFound("no model 'x': give"), CorruptModel("x is damaged"), CacheError("full")]
)
def test_what_the_loader_refuses_is_shown_and_leaves_no_trace(error: Exception, tmp_path: Path) -> None:
    def load(model: str | None, **options: Any) -> Engine:
        raise error

    path = tmp_path / "trace.jsonl"
    result = invoke("run", "a", "--trace", str(path), load=load)
    assert (result.code, result.out, result.err) == (2, "", f"error: {error}\n")
    assert not path.exists()


def test_a_refused_run_leaves_an_older_trace_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("older\n", encoding="utf-8")
    assert invoke("run", "a" * 600, "--trace", str(path)).code == 2
    assert path.read_text(encoding="utf-8") == "older\n"


def test_files_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"\xff\xfea")
    result = invoke("run", "-f", str(path))
    assert result.code == 2
    assert "is not UTF-8 text: convert it first" in result.err
    assert invoke("run", "-", stdin=b"\xff").code == 2


def test_expected_is_refused_where_no_drafter_reads_it() -> None:
    for kind in ("none", "cascade", *known_kinds()):
        for spec in (kind, f"max=4,kind={kind}") if kind not in ("none", "cascade") else (kind,):
            toy = Toy()
            result = invoke("run", "abc", "--max-tokens", "4", "--expected", "b", "--draft", spec, load=toy)
            assert ("does not read --expected" in result.err) == (kind != "given"), spec
            assert (result.code, toy.loads) == ((0, 1) if kind == "given" else (2, 0))
    both = ("--draft", "suffix", "--draft", "given")
    assert invoke("run", "abc", "--max-tokens", "4", "--expected", "b", *both).code == 0


def test_the_unexpected_is_one_line_too_unless_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(model: str | None, **options: Any) -> Engine:
        raise ZeroDivisionError("by\nzero")

    result = invoke("run", "a", load=load)
    assert result.code == 1
    assert re.fullmatch(
        r"error: sooner failed \(ZeroDivisionError: by zero\): [^\n]*SOONER_DEBUG=1[^\n]*\n", result.err
    )
    monkeypatch.setenv("SOONER_DEBUG", "1")
    assert "Traceback" in invoke("run", "a", load=load).err


def test_ctrl_c_while_loading() -> None:
    def load(model: str | None, **options: Any) -> Engine:
        raise KeyboardInterrupt

    assert invoke("run", "a", load=load).code == 130


def test_ctrl_c_before_anything_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries take a while to import; no traceback may be what the user sees then."""
    monkeypatch.setitem(sys.modules, "sooner.cli.failures", _Interrupting("sooner.cli.failures"))
    result = invoke("run", "a")
    assert (result.code, result.out, result.err) == (130, "", "")


class _Interrupting(ModuleType):
    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            raise KeyboardInterrupt
        return super().__getattribute__(name)


@pytest.mark.parametrize("budget", ["255", "256", "5000"])
def test_a_budget_beyond_a_pass_is_clipped_and_said_once(budget: str) -> None:
    toy = Toy()
    result = invoke("run", "abc", "--max-tokens", "8", "--ignore-eos", "--budget", budget, load=toy)
    assert (result.code, toy.options["budget"]) == (0, 255)
    assert result.err.count(f"a budget of {budget} draft tokens is more than a pass takes: it is 255") == (
        budget != "255"
    )
    assert result.out == invoke("run", "abc", "--max-tokens", "8", "--ignore-eos", "--draft", "none").out


@pytest.mark.parametrize(
    "command", [(), ("run",), ("chat",), ("explain",), ("models",), ("models", "pull"), ("doctor",)]
)
def test_every_command_has_a_page(command: tuple[str, ...]) -> None:
    page = invoke(*command, "--help")
    assert page.code == 0
    assert page.err == ""
    assert "xit codes" in page.out
    if command and command[-1] != "pull":
        assert "Examples" in page.out


def test_no_command_prints_the_page_and_version_the_version() -> None:
    import sooner

    assert "Usage: sooner" in invoke().out
    assert invoke("--version").out == f"sooner {sooner.__version__}\n"
