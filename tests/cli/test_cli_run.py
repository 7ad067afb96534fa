"""``sooner run`` on a toy model: text, options, streams, traces, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commandline import InterruptedTarget, Toy, invoke
from sooner.cli.prompt import read_prompt
from sooner.engine import Engine
from sooner.trace import Trace, read_step
from sooner.types import Step
from test_waves import TONE, written

LONG = ("--max-tokens", "60", "--ignore-eos", "--temperature", "0.8", "--seed", "5")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_text_on_stdout_and_nothing_else_anywhere() -> None:
    result = invoke("run", "abc", *LONG, "--draft", "random")
    assert result.code == 0
    assert result.err == ""
    assert result.out.endswith("\n")
    assert result.out.strip()


@pytest.mark.parametrize("draft", ["none", "suffix", "ngram:max=3", "kind=random,max=5", "self"])
def test_no_drafter_changes_the_text(draft: str) -> None:
    assert invoke("run", "abc", *LONG, "--draft", draft).out == invoke("run", "abc", *LONG, "--budget", "0").out


def test_other_seeds_give_other_texts() -> None:
    """Negative control of the test above: the text is not constant."""
    assert invoke("run", "abc", *LONG, "--seed", "6").out != invoke("run", "abc", *LONG).out


def test_json_is_one_object_with_the_same_text() -> None:
    plain = invoke("run", "abc", *LONG)
    value = json.loads(invoke("run", "abc", *LONG, "--json", "--logprobs", "2").out)
    assert value["text"].rstrip("\n") == plain.out.rstrip("\n")
    assert set(value) >= {"token_ids", "logprobs", "finish_reason", "usage", "speculation", "timings", "seed"}
    assert value["seed"] == 5
    assert len(value["logprobs"]) == len(value["token_ids"]) == 60
    assert all(len(entry["top"]) == 2 for entry in value["logprobs"])


def test_no_stream_prints_the_same_text() -> None:
    assert invoke("run", "abc", *LONG, "--no-stream").out == invoke("run", "abc", *LONG).out


def test_several_answers_are_told_apart_and_the_first_is_the_single_one() -> None:
    alone = invoke("run", "abc", *LONG)
    several = invoke("run", "abc", *LONG, "-n", "3")
    first, *others = re.split(r"--- answer \d of 3 ---\n", several.out)
    assert first == alone.out
    assert len(others) == 2
    value = json.loads(invoke("run", "abc", *LONG, "-n", "3", "--json").out)
    assert [choice["choice"] for choice in value["choices"]] == [0, 1, 2]
    assert [choice["text"].rstrip("\n") for choice in value["choices"]] == [t.rstrip("\n") for t in (first, *others)]


def test_the_prompt_comes_from_argument_file_or_pipe(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("abc\n", encoding="utf-8")
    want = invoke("run", "abc", *LONG).out
    assert invoke("run", "-f", str(file), *LONG).out == want
    assert invoke("run", *LONG, stdin=b"abc\n").out == want
    assert invoke("run", "-", *LONG, stdin=b"abc\n").out == want
    assert invoke("run", "abc", "-f", str(file), *LONG).out == invoke("run", "abc\n\nabc", *LONG).out


def test_the_system_message_comes_first() -> None:
    assert invoke("run", "abc", "-s", "gh", *LONG).out == invoke("run", "ghabc", *LONG).out


def test_options_reach_the_loader_and_expected_brings_its_drafter(tmp_path: Path) -> None:
    toy = Toy()
    options = ["--threads", "2", "--precision", "f32", "--context", "99", "--offline", "-m", "some.gguf"]
    assert invoke("run", "abc", *LONG, *options, load=toy).code == 0
    assert toy.options == {
        "model": "some.gguf",
        "draft": "auto",
        "budget": None,
        "threads": 2,
        "precision": "f32",
        "pool_tokens": 99,
        "offline": True,
    }
    answer = json.loads(invoke("run", "abc", *LONG, "--json").out)["text"]
    file = tmp_path / "expected.txt"
    file.write_text(answer, encoding="utf-8")
    value = json.loads(invoke("run", "abc", *LONG, "--json", "--expected", f"@{file}", load=toy).out)
    assert toy.options["draft"] == ["given", "suffix"]
    assert value["text"] == answer


def test_drafters_are_merged_and_a_budget_is_passed_on() -> None:
    toy = Toy()
    invoke("run", "abc", *LONG, "--draft", "ngram:max=12", "--draft", "suffix", load=toy)
    assert toy.options["draft"] == [{"kind": "ngram", "max": "12"}, {"kind": "suffix"}]
    assert toy.options["budget"] is None
    config = '{"method": "ngram", "num_speculative_tokens": 11, "prompt_lookup_max": 4}'
    invoke("run", "abc", *LONG, "--speculative-config", config, "--budget", "5", load=toy)
    assert toy.options["budget"] == 5
    assert toy.options["draft"][0]["kind"] == "ngram"


def test_a_terminal_gets_a_line_of_figures_and_a_pipe_does_not() -> None:
    result = invoke("run", "abc", *LONG, terminal=True)
    line = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", result.err)
    assert "60 tokens · " in line
    assert "drafter suffix+recycle · seed 5 · length limit" in line
    assert invoke("run", "abc", *LONG).err == ""


def test_colours_respect_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colour = re.compile(r"\x1b\[[\d;]*3[0-7]m")
    arguments = ("run", "abc", *LONG, "--verify", "typical")
    lossy = invoke(*arguments, terminal=True).err
    assert "LOSSY" in lossy
    assert re.search(r"\x1b\[1;31mLOSSY", lossy)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(invoke(*arguments, terminal=True).err)


def test_lossy_rules_are_called_lossy_without_a_terminal_too() -> None:
    assert "LOSSY" in invoke("run", "abc", *LONG, "--verify", "typical").err
    assert "LOSSY" not in invoke("run", "abc", *LONG, "--verify", "block").err


def test_verbose_says_what_runs_and_why_anything_is_off() -> None:
    err = invoke("run", "abc", *LONG, "-v").err
    for fact in (
        "memory:",
        "model: toy",
        "drafter: suffix+recycle, at most 8",
        "lossless",
        "same bits",
        "context: 512",
        "noise",
    ):
        assert fact in err
    assert "seed 5" in err
    assert "off: the budget is 0" in invoke("run", "abc", *LONG, "-v", "--budget", "0").err
    assert "drafter: none, every pass gives one token (--draft none)" in " ".join(
        invoke("run", "abc", *LONG, "-v", "--draft", "none").err.split()
    )


def test_verbose_says_when_a_profile_is_why_nothing_is_drafted() -> None:
    def tuned(model: str | None, **options: Any) -> Engine:
        return Toy()(model, **{**options, "draft": None})

    err = invoke("run", "abc", *LONG, "-v", load=tuned).err
    assert "sooner tune found no drafter faster here" in err
    assert "--draft none" not in err


def test_a_drafter_that_drafts_nothing_is_a_warning() -> None:
    result = invoke("run", "abc", *LONG, "--draft", "ngram:min_match=8")
    assert result.code == 0
    assert result.err == "warning: ngram drafted nothing for this text\n"


def test_control_characters_reach_a_pipe_but_not_a_terminal() -> None:
    from sooner.cli.output import printable

    assert printable("a\x1b]0;title\x07b\tc\n\x9b") == "a]0;titleb\tc\n"


def test_the_trace_holds_every_step_and_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("what was here before\n", encoding="utf-8")
    value = json.loads(
        invoke("run", "abc", *LONG, "--json", "--logprobs", "1", "--draft", "random", "--trace", str(path)).out
    )
    header, *records, footer = lines(path)
    steps = [record for record in records if record["type"] == "step"]
    assert (header["type"], header["schema"], footer["type"]) == ("header", 1, "footer")
    assert header["seed"] == 5
    assert header["sampling"]["temperature"] == 0.8
    assert [token for step in steps for token in step["tokens"]] == value["token_ids"]
    assert "".join(step["text"] for step in steps) == value["text"]
    assert all(set(step) == {"type", "p", "top", *Step.__dataclass_fields__} - {"odds"} for step in steps)
    assert all(len(row) <= 3 for step in steps for row in step["top"])
    assert read_step(steps[3]).draft.tokens == tuple(steps[3]["draft"]["tokens"])
    assert footer["choices"][0]["speculation"]["drafted"] == sum(len(s["draft"]["tokens"]) for s in steps)
    assert footer["choices"][0]["usage"] == value["usage"]


def test_alternatives_are_for_traces_and_change_no_text(tmp_path: Path) -> None:
    plain = json.loads(invoke("run", "abc", *LONG, "--json").out)["token_ids"]
    for most in (0, 7):
        path = tmp_path / f"{most}.jsonl.gz"
        options = ("--json", "--trace", str(path), "--trace-alternatives", str(most))
        assert json.loads(invoke("run", "abc", *LONG, *options).out)["token_ids"] == plain
        with Trace(path) as trace:
            rows = [row for step in trace for row in step["top"]]
        assert max(map(len, rows)) == most
    refused = invoke("run", "abc", "--trace-alternatives", "2")
    assert (refused.code, "add --trace FILE" in refused.err) == (2, True)


def test_ctrl_c_keeps_what_was_written(tmp_path: Path) -> None:
    full = json.loads(invoke("run", "abc", *LONG, "--json").out)
    path = tmp_path / "cut.jsonl"
    result = invoke("run", "abc", *LONG, "--trace", str(path), load=Toy(lambda: InterruptedTarget(12)))
    assert result.code == 130
    assert result.err == ""
    assert result.out.endswith("\n")
    assert result.out != "\n"
    assert full["text"].startswith(result.out.rstrip("\n").rstrip("�"))
    assert lines(path)[-1]["choices"][0]["finish_reason"] == "abort"
    result = invoke("run", "abc", *LONG, "--json", load=Toy(lambda: InterruptedTarget(12)))
    value = json.loads(result.out)
    assert result.code == 130
    assert value["finish_reason"] == "abort"
    assert value["token_ids"] == full["token_ids"][: len(value["token_ids"])]


def test_a_rules_options_reach_it_and_bad_ones_are_refused_before_anything_is_loaded() -> None:
    arguments = ("run", "abc", *LONG, "-t", "1.5", "--seed", "1", "--draft", "random", "--json", "--verify")
    accepted = []
    for rule in ("typical:epsilon=0.999,delta=0.999", "typical:epsilon=0.001,delta=0.001"):
        result = invoke(*arguments, rule)
        speculation = json.loads(result.out)["speculation"]
        assert (speculation["verify"], speculation["lossless"]) == ("typical", False)
        accepted.append(speculation["accepted"])
    assert accepted[0] < accepted[1]
    for bad in ("typical:gamma=1", "typical:epsilon=2", "typical:", "coupled:epsilon=0.1"):
        toy = Toy()
        result = invoke(*arguments, bad, load=toy)
        assert (result.code, result.out, toy.loads) == (2, "", 0)
        assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--image", "{there}"), "this model takes no images: leave them out"),
        (("--image", "{missing}"), "there is no picture"),
        (("--image", "data:image/png,x"), "data URL must be"),
        (("--image", "https://example.org/cat.png"), "fetches no pictures"),
        (("--image", "{there}", "--raw"), "--raw continues the text as it stands and has no place for --image"),
    ],
)
def test_pictures_that_cannot_be_shown_are_refused_in_a_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    toy, there = Toy(), tmp_path / "a.png"
    there.write_bytes(b"a picture")
    given = [word.format(there=there, missing=tmp_path / "b.png") for word in arguments]
    result = invoke("run", "abc", *given, load=toy)
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1
    assert toy.loads == (said.startswith("this model"))  # what can be known without a model is said without one


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--audio", "{there}"), "this model takes no sound: leave it out"),
        (("--audio", "{missing}"), "there is no sound"),
        (("--audio", "{damaged}"), "ends 10 bytes too early"),
        (("--audio", "https://example.org/talk.wav"), "fetches no sounds"),
        (("--audio", "{there}", "--raw"), "--raw continues the text as it stands and has no place for --audio"),
        (("--language", "en", "-f", "{there}x"), "cannot be read"),
        (("abc", "--language", "en"), "--language is about a sound: add --audio FILE"),
        (("abc", "--task", "translate"), "--task is about a sound: add --audio FILE"),
    ],
)
def test_sounds_that_cannot_be_heard_are_refused_in_a_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    toy, there, damaged = Toy(), tmp_path / "a.wav", tmp_path / "b.wav"
    there.write_bytes(written(TONE, 2))
    damaged.write_bytes(written(TONE, 2)[:-10])
    given = [word.format(there=there, damaged=damaged, missing=tmp_path / "c.wav") for word in arguments]
    result = invoke("run", *given, load=toy)
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1
    assert toy.loads == (said.startswith("this model"))  # what can be known without a model is said without one


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stdin", "want"),
    [
        (lambda: io.TextIOWrapper(io.BytesIO(b"Kim, Lee\n")), "Kim, Lee"),
        (lambda: io.TextIOWrapper(io.BytesIO(b"\n")), ""),
        (lambda: os.fdopen(os.open(os.devnull, os.O_RDONLY)), ""),
        (lambda: os.fdopen(os.open(os.devnull, os.O_WRONLY)), ""),  # nohup's
        (lambda: Terminal(io.BytesIO(b"Kim, Lee\n")), ""),
    ],
)
def test_beside_a_sound_the_prompt_is_what_is_piped_in(
    stdin: Callable[[], Any], want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stdin() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert read_prompt("said", None, needed=False) == "said"
        assert read_prompt(None, None, needed=False) == want
