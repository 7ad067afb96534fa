"""``sooner trace`` on a toy model: pages, figures, differences, the export, the viewer's page, the proof."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commandline import Result, Toy, invoke
from sooner.targets.toy import ToyTarget
from toy import V

LONG = ("--max-tokens", "30", "-t", "0.9", "--seed", "5", "--ignore-eos", "--draft", "random", "--budget", "5")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("traces") / "t.jsonl")


def record(path: Path, *options: str) -> Path:
    assert invoke("run", "abc", *LONG, *options, "--trace", str(path)).code == 0
    return path


def trace(*arguments: str | Path, code: int = 0, load: Any = None) -> Result:
    more = {} if load is None else {"load": load}
    result = invoke("trace", *map(str, arguments), **more)
    assert result.code == code, result.err
    return result


def changed(path: Path, to: Path, change: Any) -> Path:
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    change(records)
    to.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return to


def steps(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in records if one["type"] == "step"]


def flip(records: Sequence[dict[str, Any]]) -> None:
    step = steps(records)[3]
    step["tokens"][0] = 1 + step["tokens"][0] % 5


# -- show --------------------------------------------------------------------------------------------------------------


def test_show_marks_drafted_tokens_by_shape_and_lists_the_steps(recorded: Path) -> None:
    out = trace("show", recorded).out
    accepted = json.loads(trace("stats", recorded, "--json").out)["accepted"]
    assert accepted > 0
    assert "[random]" in out
    assert "the target's own tokens are bare" in out
    assert out.count("/5") > 3
    text = json.loads(invoke("run", "abc", *LONG, "--json").out)["text"]
    shown = out.split("\n\n")[1]
    assert shown.replace("[", "").replace("]", "").split() == text.split()


def test_show_takes_a_part(recorded: Path) -> None:
    result = trace("show", recorded, "--from", "3", "--count", "2")
    assert "more steps follow: --from 5 shows them" in result.err
    rows = [line.split()[0] for line in result.out.splitlines() if line[:6].strip().isdigit()]
    assert rows == ["3", "4"]
    whole = trace("show", recorded, "--all")
    assert "more steps" not in whole.err
    assert "has no step 999" in trace("show", recorded, "--from", "999", code=2).err
    assert "of answer 1" in trace("show", recorded, "--choice", "1", code=2).err


def test_show_says_what_was_cut_off(recorded: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(recorded.read_bytes()[:-400])
    assert "was cut off: it has no footer" in trace("show", cut).err
    assert "was cut off" in trace("stats", cut).err
    cut.write_text(recorded.read_text("utf-8").splitlines()[0], encoding="utf-8")
    early = trace("show", cut, code=2)
    assert (early.out, "ends before its first step" in early.err) == ("", True)
    failed = changed(recorded, tmp_path / "failed.jsonl", lambda records: records[-1].update(error="no power"))
    assert "ends with an error: no power" in trace("show", failed).err


def test_lossy_rules_are_shown_as_lossy(tmp_path: Path) -> None:
    path = record(tmp_path / "t.jsonl", "--verify", "typical")
    for page in ("show", "stats"):
        assert "LOSSY" in trace(page, path).out


# -- stats, diff, export -----------------------------------------------------------------------------------------------


def test_stats_are_a_page_and_an_object(recorded: Path) -> None:
    page = trace("stats", recorded).out
    told = json.loads(trace("stats", recorded, "--json").out)
    for title in ("Acceptance by position", "Acceptance by drafter", "Tokens a step drafted", "Where the time went"):
        assert title in page
    assert f"{told['accepted']} of {told['drafted']} drafted" in " ".join(page.split())
    assert told["tokens"] == 30
    assert told["complete"] is True
    assert "cannot be told from this trace" in " ".join(page.split())  # a toy has no cost curve


def test_diff_of_the_same_text_is_0(recorded: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.jsonl"
    arguments = [word for word in LONG if word not in ("random", "--draft", "--budget")][:-1]
    assert invoke("run", "abc", *arguments, "--draft", "none", "--trace", str(plain)).code == 0
    result = trace("diff", recorded, plain)
    assert "the same text, 30 tokens" in result.out
    assert "drafter" in result.out
    told = json.loads(trace("diff", recorded, plain, "--json").out)
    assert (told["same"], told["position"], told["settings"]["drafter"]) == (True, None, ["random", "none"])


def test_diff_of_other_texts_is_1_and_shows_where(recorded: Path, tmp_path: Path) -> None:
    other = changed(recorded, tmp_path / "other.jsonl", flip)
    result = trace("diff", recorded, other, code=1)
    told = json.loads(trace("diff", recorded, other, "--json", code=1).out)
    assert f"the texts part at position {told['position']}" in result.out
    assert told["a"]["tokens"][0] != told["b"]["tokens"][0]
    assert "Steps side by side" in result.out
    seeds = json.loads(trace("diff", recorded, record(tmp_path / "s.jsonl", "--seed", "6"), "--json", code=1).out)
    assert seeds["settings"] == {"seed": [5, 6]}


def test_diff_of_what_is_no_trace_is_2(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert "is empty" in trace("diff", recorded, tmp_path / "empty", code=2).err
    assert "No such file" in trace("diff", tmp_path / "none", recorded, code=2).err


def test_export_writes_chrome_trace_events(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert "events in" in trace("export", "--perfetto", out, recorded).err
    events = json.loads(out.read_text("utf-8"))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert "names the trace itself" in trace("export", "--perfetto", recorded, recorded, code=2).err
    assert "cannot be written" in trace("export", "--perfetto", tmp_path, recorded, code=2).err


# -- view --------------------------------------------------------------------------------------------------------------


def test_view_keeps_a_page_with_the_trace(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def browser(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", browser)
    out = tmp_path / "page.html"
    assert trace("view", recorded, "-o", out).out == f"{out}\n"
    assert "<html" in out.read_text("utf-8")
    assert opened == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Path(trace("view", recorded).out.strip())
    assert made.parent == tmp_path
    assert opened == [made.as_uri()]
    trace("view", recorded, "--no-open")
    trace("view", "-o", tmp_path / "empty.html", "--open")
    assert len(opened) == 2
    assert len((tmp_path / "empty.html").read_text("utf-8")) < len(out.read_text("utf-8"))
    assert "cannot be written" in trace("view", recorded, "-o", tmp_path, code=2).err
    (tmp_path / "text").write_text("hello")
    assert "is no trace" in trace("view", tmp_path / "text", code=2).err


# -- verify ------------------------------------------------------------------------------------------------------------


def test_verify_proves_a_text(recorded: Path) -> None:
    result = trace("verify", recorded)
    assert "proven: toy writes this text for this prompt, these options and seed 5" in " ".join(result.out.split())
    assert "30 tokens decided again in 2 passes" in result.out
    assert json.loads(trace("verify", recorded, "--steps", "--json").out)["proven"] is True


def test_verify_catches_a_flipped_token_and_names_it(recorded: Path, tmp_path: Path) -> None:
    """Negative control of the test above."""
    other = changed(recorded, tmp_path / "other.jsonl", flip)
    for options in ((), ("--steps",)):
        result = trace("verify", other, *options, code=1)
        assert "not proven: toy has another token at position" in " ".join(result.out.split())
        told = json.loads(trace("verify", other, "--json", *options, code=1).out)
        assert told["mismatch"]["what"] == "token"


def test_verify_refuses_what_it_cannot_tell_before_a_model_is_loaded(recorded: Path, tmp_path: Path) -> None:
    refused: dict[str, Any] = {
        "withholds its prompt": lambda records: records[0].update(prompt=None),
        "lossy rule": lambda records: records[0]["sampling"].update(verify="typical"),
        "does not determine the text": lambda records: records[0]["sampling"].update(verify="block"),
    }
    for message, change in refused.items():
        toy = Toy()
        result = trace("verify", changed(recorded, tmp_path / "t.jsonl", change), code=2, load=toy)
        assert message in result.err
        assert toy.loads == 0
    result = trace("verify", recorded, code=2, load=Toy(lambda: ToyTarget(V, seed=9)))
    assert "name the trace's own model with --model" in result.err


def test_verify_takes_model_and_precision_from_the_trace(recorded: Path, tmp_path: Path) -> None:
    toy = Toy()
    trace("verify", recorded, load=toy)
    assert (toy.options["model"], toy.options["draft"]) == ("toy", None)

    def elsewhere(records: Sequence[dict[str, Any]]) -> None:
        records[0]["fingerprint"] |= {"precision": "f32", "engine": "another"}

    result = trace("verify", changed(recorded, tmp_path / "t.jsonl", elsewhere), "-m", "other", load=toy)
    assert (toy.options["model"], toy.options["precision"]) == ("other", "f32")
    assert "engine: recorded under another" in result.err


def test_a_missing_file_is_one_line_everywhere(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    commands: list[tuple[str | Path, ...]] = [(name, missing) for name in ("show", "stats", "view", "verify")]
    commands += [("diff", missing, missing), ("export", "--perfetto", tmp_path / "o", missing)]
    for arguments in commands:
        result = trace(*arguments, code=2)
        assert result.out == ""
        assert len(result.err.splitlines()) == 1
        assert "No such file" in result.err
