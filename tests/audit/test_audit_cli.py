"""``sooner audit`` on a toy: what is said before and after, files, exit codes, going on, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from commandline import InterruptedTarget, Toy, invoke
from sooner.targets.toy import ToyTarget
from toy import V

SHORT = ("--tokens", "60", "--max-tokens", "6", "-t", "0.8", "--batch", "1", "--draft", "oracle", "--draft", "random")
NO_LAWS = ("--draws", "0")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_a_sound_model_is_cleared_in_one_screen(tmp_path: Path) -> None:
    out, page = tmp_path / "a.json", tmp_path / "a.html"
    result = invoke("audit", *SHORT, "--draws", "150", "--json", str(out), "--html", str(page))
    assert result.code == 0, result.out + result.err
    assert len(result.out.splitlines()) < 40
    assert all(len(line) <= 80 for line in result.out.splitlines() if not line.startswith("again"))
    text = " ".join(result.out.split())
    assert "identical: " in text
    assert "rejection and block keep the model's distribution" in text
    assert "negative controls: 6 of 6 caught" in text
    assert "again: sooner audit --tokens 60" in text
    assert "drafters: oracle, random; temperatures 0.8; 1 side by side" in result.err
    assert "this takes about" in result.err
    record = json.loads(out.read_text())
    assert (record["verdict"], record["exit_code"], record["schema"]) == ("identical", 0, 1)
    assert record["tokens"] >= 60
    assert [rule["rule"] for rule in record["rules"]] == ["rejection", "rejection", "block", "block"]
    assert record["machine"]["versions"]["sooner"]
    assert record["fingerprint"]["noise"]


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    invoke("audit", *SHORT, *NO_LAWS, "--negative-control", "row-counts", "--html", str(page))
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert not re.search(r"<script|https?://|src=|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert 'class="verdict bad"' in text
    assert "numeric near-tie" in text


@pytest.mark.parametrize(
    ("fault", "said"),
    [("last-place", "equal up to rounding"), ("row-counts", "equal up to rounding"), ("swapped-rows", "DIFFERENT")],
)
def test_a_model_broken_on_purpose_shows_what_a_difference_looks_like(fault: str, said: str) -> None:
    result = invoke("audit", *SHORT, *NO_LAWS, "--negative-control", fault)
    assert result.code == 1
    assert said in " ".join(result.out.split())
    assert "first difference: prompt" in " ".join(result.out.split())
    assert "broken on purpose" in result.err


def test_a_model_whose_rows_depend_on_the_pass_is_caught(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    toy = Toy(lambda: ToyTarget(V, row_dependent=True, sharpness=4.0))
    result = invoke("audit", *SHORT, *NO_LAWS, "--json", str(out), load=toy)
    assert result.code == 1
    record = json.loads(out.read_text())
    assert record["verdict"] == "near-ties"
    assert record["spread"] > 0.1


def test_an_audit_that_misses_what_is_broken_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sooner.audit.model.FAULTS", {"last-place": lambda work, logits, fed: logits})
    result = invoke("audit", *SHORT, *NO_LAWS)
    assert result.code == 2
    assert "void: " in result.out
    assert "MISSED: rows off by one unit in the last place" in " ".join(result.out.split())


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    arguments = ("audit", *SHORT, *NO_LAWS, "--json", str(out))
    stopped = invoke(*arguments, load=Toy(lambda: InterruptedTarget(340)))
    assert stopped.code == 130
    assert "the same command goes on" in stopped.err
    assert not out.exists()
    again = invoke(*arguments)
    assert again.code == 0
    found = re.search(r"going on where it ended: (\d+) parts are done", again.err)
    assert found is not None
    assert int(found[1]) > 2
    assert json.loads(out.read_text())["verdict"] == "identical"
    assert "going on" not in invoke(*arguments).err, "a finished audit leaves no state"


def test_restart_forgets(tmp_path: Path) -> None:
    arguments = ("audit", *SHORT, *NO_LAWS)
    assert invoke(*arguments, load=Toy(lambda: InterruptedTarget(340))).code == 130
    assert "going on" not in invoke(*arguments, "--restart").err


def test_the_users_prompts(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("abc\n" + "abc" * 400 + "\ngab\n")
    result = invoke("audit", str(file), *SHORT, *NO_LAWS)
    assert result.code == 0
    assert "warning: prompt 2 is left out" in result.err
    assert "of 2 prompts" in result.err
    assert f"again: sooner audit {file}" in result.out.replace("\n", "")


def test_a_drafter_that_the_model_cannot_have_is_left_out_of_all_and_said() -> None:
    arguments = ("--tokens", "10", "--max-tokens", "2", "-t", "0", "--batch", "1")
    result = invoke("audit", *arguments, *NO_LAWS)
    assert result.code == 0
    assert "left out: there is no table" in " ".join(result.out.split())


def test_a_drafter_that_is_asked_for_and_cannot_be_had_is_refused() -> None:
    result = invoke("audit", "--draft", "table", "--draft", "suffix", *NO_LAWS)
    assert result.code == 2
    assert "--draft table: there is no table" in " ".join(result.err.split())


def test_what_was_found_is_kept_until_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sooner.cli import audit_view
    from sooner.errors import InvalidRequest

    def full(path: Path, text: str) -> None:
        raise InvalidRequest("the disk is full")

    arguments = ("audit", *SHORT, *NO_LAWS, "--json", str(tmp_path / "a.json"))
    with monkeypatch.context() as patch:
        patch.setattr(audit_view, "write_result", full)
        assert invoke(*arguments).code == 2
    again = invoke(*arguments)
    assert again.code == 0
    assert "going on where it ended" in again.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.txt",), "cannot be read"),
        (("--draft", "sufix"), "names no drafter 'sufix'"),
        (("--draft", "none"), "leaves nothing to compare"),
        (("-t", "-1"), "--temperature must be"),
        (("--batch", "9"), "--batch"),
        (("--json", "/nonexistent/x"), "cannot be written"),
        (("--html", "/nonexistent/x"), "cannot be written"),
        (("--negative-control", "wrong"), "--negative-control"),
        (("--plain", "{}"), "goes with --url"),
        (("--url", "http://a", "--url", "http://b", "--url", "http://c"), "once or twice"),
        (("--url", "ftp://x"), "is no address"),
        (("--url", "http://h:port"), "is no address"),
        (("--url", "http://127.0.0.1:1", "--plain", "[]"), "must be a JSON object"),
        (("--url", "http://127.0.0.1:1", "--draft", "suffix"), "leave it out"),
        (("--url", "http://127.0.0.1:1"), "does not answer"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(arguments: tuple[str, ...], message: str) -> None:
    toy = Toy()
    result = invoke("audit", *arguments, load=toy)
    assert (result.code, result.out) == (2, "")
    assert message in " ".join(result.err.split())
    assert len(result.err.splitlines()) == 1
    assert toy.loads == 0


def test_a_key_is_never_repeated() -> None:
    """What is secret stays out of the command that repeats an audit."""
    from sooner.cli.audit_view import repeating

    class Context:
        class Command:
            params: Any = ()

        command = Command()
        params: Any = None

    class Parameter:
        def __init__(self, name: str, *opts: str) -> None:
            self.name, self.opts = name, opts

    class Source:
        name = "COMMANDLINE"

    context: Any = Context()
    context.command.params = [Parameter("url", "--url"), Parameter("api_key", "--api-key"), Parameter("file", "file")]
    context.params = {"url": ["http://a b"], "api_key": "secret", "file": "x y"}
    context.get_parameter_source = lambda name: Source
    assert repeating(context) == "sooner audit --url 'http://a b' 'x y'"
