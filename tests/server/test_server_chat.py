"""``sooner chat --url`` on a toy server, its messages piped in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from serving import toy_engine
from test_server_lives import Slow
from test_server_socket import listening

from commandline import invoke
from sooner.server import Settings

TALK = ("--max-tokens", "12", "-t", "0.8", "--seed", "4")


def test_each_answer_sees_the_conversation_and_is_the_local_one(tmp_path: Path) -> None:
    with listening() as (address, _):
        said = f"abc\ngh\n/stats\n/save {tmp_path / 'talk.json'}\n".encode()
        result = invoke("chat", "--url", f"{address}/v1", *TALK, "-s", "dd", "--draft", "ngram", stdin=said)
    assert result.code == 0, result.err
    system, first, answer, second, another = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    engine = toy_engine()
    want = engine.generate([system, first], max_tokens=12, temperature=0.8, seed=4).text
    assert answer["content"] == want
    told = engine.generate([system, first, answer, second], max_tokens=12, temperature=0.8, seed=4).text
    assert another["content"] == told
    assert "2 answers, " in result.err
    assert "drafted tokens accepted" in result.err


def test_keys_and_refusals_and_failures_are_told() -> None:
    with listening(settings=Settings(keys=("one",))) as (address, _):
        assert invoke("chat", "--url", address, *TALK, "--api-key", "one", stdin=b"abc\n").code == 0
        refused = invoke("chat", "--url", address, *TALK, stdin=b"abc\n")
        assert (refused.code, "API key" in refused.err) == (2, True)
        long = invoke("chat", "--url", address, *TALK, "--api-key", "one", stdin=b"a" * 600 + b"\n")
        assert (long.code, "the context holds 512" in long.err) == (2, True)
    gone = invoke("chat", "--url", address, *TALK, stdin=b"abc\n")
    assert (gone.code, "is sooner serve running?" in gone.err) == (2, True)
    with listening(Slow(0.0, fails=5)) as (address, _):
        failed = invoke("chat", "--url", address, *TALK, stdin=b"abc\n")
        assert (failed.code, "on fire" in failed.err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--url", "ftp://x"), "no address"),
        (("--url", "http://127.0.0.1:1", "--model", "m"), "leave out --model"),
        (("--url", "http://127.0.0.1:1", "--budget", "3"), "leave out --budget"),
        (("--url", "http://127.0.0.1:1", "--draft", "ngram", "--draft", "suffix"), "one --draft"),
        (("--url", "http://127.0.0.1:1"), "does not answer"),
    ],
)
def test_what_a_server_cannot_honour_is_refused(argv: tuple[str, ...], complaint: str) -> None:
    result = invoke("chat", *argv, stdin=b"abc\n")
    assert result.code == 2
    assert complaint in result.err
    assert result.err.count("\n") == 1
