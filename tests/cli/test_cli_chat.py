"""``sooner chat`` on a toy model, its messages piped in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from commandline import InterruptedTarget, Toy, invoke
from sooner.cli.chat import Chat
from sooner.types import Sampling

TALK = ("--max-tokens", "12", "-t", "0.8", "--seed", "4")


def saved(tmp_path: Path, *said: str, argv: Sequence[str] = (), load: Toy | None = None) -> list[dict[str, str]]:
    """The conversation after ``said``, as it was saved."""
    path = tmp_path / "talk.json"
    text = "\n".join([*said, f"/save {path}", ""])
    result = invoke("chat", *TALK, *argv, stdin=text.encode(), load=load)
    assert result.code == 0, result.err
    messages: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return messages


def test_each_answer_sees_the_conversation(tmp_path: Path) -> None:
    first, answer, second, another = saved(tmp_path, "abc", "gh")
    assert [turn["role"] for turn in (first, answer, second, another)] == ["user", "assistant"] * 2
    alone = invoke("run", "abc", *TALK).out
    assert answer["content"].rstrip("\n") == alone.rstrip("\n")
    told = invoke("run", f"abc{answer['content']}gh", *TALK).out
    assert another["content"].rstrip("\n") == told.rstrip("\n")


def test_answers_go_to_stdout_and_the_rest_to_stderr() -> None:
    result = invoke("chat", *TALK, stdin=b"abc\n/stats\n/help\n")
    assert result.out.rstrip("\n") == invoke("run", "abc", *TALK).out.rstrip("\n")
    assert "1 answers, " in result.err
    assert "/reset" in result.err


def test_the_system_message_is_seen_shown_and_changed(tmp_path: Path) -> None:
    messages = saved(tmp_path, "abc", "/system ef", "gh", argv=("-s", "dd"))
    assert [turn["role"] for turn in messages] == ["system", *["user", "assistant"] * 2]
    assert messages[0]["content"] == "ef"
    assert messages[2]["content"].rstrip("\n") == invoke("run", "ddabc", *TALK).out.rstrip("\n")


def test_reset_forgets_and_keeps_the_system_message(tmp_path: Path) -> None:
    messages = saved(tmp_path, "abc", "/reset", "gh", argv=("-s", "dd"))
    assert [turn["content"] for turn in messages[:2]] == ["dd", "gh"]
    assert len(messages) == 3


def test_retry_replaces_the_last_answer(tmp_path: Path) -> None:
    assert len(saved(tmp_path, "abc", "/retry", "/retry", argv=("-t", "1.0"))) == 2


def test_later_turns_find_the_conversation_in_the_cache() -> None:
    """The toy shares prefixes of open sessions only, so this reads the figures' presence, not the cache itself."""
    assert "of them from the cache; the context holds 512" in invoke("chat", *TALK, stdin=b"abc\n/stats\n").err


def test_ctrl_c_stops_the_answer_not_the_program(tmp_path: Path) -> None:
    whole = saved(tmp_path, "abc")[1]["content"]
    messages = saved(tmp_path, "abc", "gh", argv=("--draft", "none"), load=Toy(lambda: InterruptedTarget(6)))
    assert len(messages) == 4
    cut = messages[1]["content"].rstrip("�")
    assert whole.startswith(cut)
    assert len(cut) < len(whole)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"/bogus\n", "/help lists them"),
        (b"/save\n", "needs a file name"),
        (b"/image\n", "needs a file"),
        (b"/image cat.png\n", "this model takes no images"),
        (b"/save /no/such/folder/x\n", "cannot be written"),
        (b"/retry\n", "write a message first"),
        (b"/stats\n", "write a message first"),
        (b"a" * 600 + b"\n", "the context holds 512"),
    ],
)
def test_piped_input_stops_at_the_first_mistake(said: bytes, complaint: str) -> None:
    result = invoke("chat", *TALK, stdin=said + b"abc\n")
    assert (result.code, result.out) == (2, "")
    assert complaint in result.err
    assert result.err.count("\n") == 1


def test_exit_ends_it() -> None:
    assert invoke("chat", *TALK, stdin=b"/exit\nabc\n").out == ""


def test_a_model_without_a_template_is_refused() -> None:
    result = invoke("chat", *TALK, stdin=b"abc\n", load=Toy(template=False))
    assert result.code == 2
    assert "no chat template" in result.err


def test_a_refused_message_leaves_the_conversation() -> None:
    engine = Toy()(None, draft=None, budget=0, progress=lambda _: None)
    conversation = Chat(engine, Sampling(max_tokens=3), system=None)
    conversation._turns.append({"role": "user", "content": "a" * 600})
    with pytest.raises(Exception, match="context holds"):
        conversation._answer()
    assert conversation.messages == []
