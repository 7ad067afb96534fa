"""``sooner explain``: the worked example's steps, and how chains and trees look."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from commandline import InterruptedTarget, Toy, invoke
from sooner.cli.example import CONTEXT, DRAFT, PROMPT, TARGET_TEXT, example_engine
from sooner.cli.render import decisions, piece, step_row
from sooner.types import ROOT, TARGET, Draft, Step
from toy import ToyCodec


def test_the_worked_example_step_by_step() -> None:
    engine = example_engine()
    expected = CONTEXT.removeprefix(PROMPT) + " " + DRAFT
    handle = engine.submit(engine.request(PROMPT, expected=expected))
    decode = engine.codec.decode
    first, second, last = engine.follow(handle)
    assert PROMPT + first.text == CONTEXT
    assert decode(second.draft.tokens) == f" {DRAFT}"
    assert decode([second.draft.tokens[node] for node in second.path]) == " 좋고"
    assert second.sources == ("given", TARGET)
    assert second.text == f" {TARGET_TEXT}"
    assert (last.text, last.finish.reason if last.finish else "") == ("", "stop")
    plain = engine.generate(PROMPT, drafting=False)
    assert plain.text == engine.completion(handle).text == f" 매우 {TARGET_TEXT}"
    assert plain.speculation.steps == 3


def test_the_example_page() -> None:
    result = invoke("explain", "--example")
    assert result.code == 0
    assert "[ 좋고] ~ 화창합니다.~ + 맑습니다.+" in result.out
    assert "step 1: 좋고 accepted, 화창합니다. rejected, 맑습니다. written by the target" in result.out
    assert "without drafting: the same text, in 4 passes instead of 3" in result.out
    assert "오늘 날씨가 매우 좋고 맑습니다." in result.out


@pytest.mark.parametrize("width", [40, 80])
def test_wide_characters_align(width: int) -> None:
    from rich.cells import cell_len

    engine = example_engine()
    steps = engine.stream(PROMPT, expected=" 매우 좋고 화창합니다.")
    console = Console(file=io.StringIO(), width=width)
    for step in steps:
        console.print(step_row(engine.codec, step))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO given above
    assert {cell_len(line) for line in text.splitlines()} == {width}


def step(draft: Draft, path: tuple[int, ...], own: int | None) -> Step:
    tokens = (*(draft.tokens[node] for node in path), *(() if own is None else (own,)))
    return Step(0, 0, 3, draft, path, tokens, ("x",) * len(path) + (TARGET,) * (own is not None), "")


def draft_of(text: str, parents: tuple[int, ...]) -> Draft:
    tokens = tuple(ToyCodec().encode(text))
    return Draft(tokens, parents, (0.5,) * len(tokens), ("x",) * len(tokens))


def drawn(draft: Draft, path: tuple[int, ...], own: str | None) -> str:
    token = None if own is None else ToyCodec().encode(own)[0]
    return decisions(ToyCodec(), step(draft, path, token)).plain


def test_chains_are_one_line() -> None:
    chain = draft_of("abc", (ROOT, 0, 1))
    assert drawn(chain, (), "d") == "~a~ ~b~ ~c~ +d+"
    assert drawn(chain, (0, 1), "d") == "[a] [b] ~c~ +d+"
    assert drawn(chain, (0, 1, 2), "d") == "[a] [b] [c] +d+"
    assert drawn(chain, (0, 1), None) == "[a] [b] ~c~"
    assert drawn(Draft(), (), "d") == "+d+"


def test_trees_are_drawn() -> None:
    tree = draft_of("abcde", (ROOT, 0, 0, ROOT, 2))
    assert drawn(tree, (0, 2), "f").splitlines() == [
        "├─ [a]",
        "│  ├─ ~b~",
        "│  └─ [c]",
        "│     ├─ ~e~",
        "│     └─ +f+",
        "└─ ~d~",
    ]
    assert drawn(tree, (), "f").splitlines()[-1] == "└─ +f+"


def test_every_node_is_drawn_once() -> None:
    tree = draft_of("abcdefgh", (ROOT, 0, 1, 1, 0, ROOT, 5, 6))
    text = drawn(tree, (0, 1, 3), "a")
    assert sorted(mark for mark in text.replace("+a+", "") if mark.isalpha()) == list("abcdefgh")
    assert text.count("[") == 3
    assert text.count("+") == 2


def test_pieces_are_readable_on_one_line() -> None:
    codec = ToyCodec()
    assert piece(codec, 0) == "<end>"
    assert piece(codec, codec.encode("\n")[0]) == "↵"
    assert piece(codec, 99) == "<99>"
    assert [piece(codec, token) for token in codec.encode("é")] == ["<C3>", "<A9>"]


def test_a_real_generation_is_shown_whole() -> None:
    arguments = ("abcabcabc", "--max-tokens", "30", "-t", "0.8", "--seed", "2")
    result = invoke("explain", *arguments, "--draft", "suffix", load=Toy())
    text = invoke("run", *arguments).out.strip()
    assert result.code == 0
    assert "[accepted]  ~rejected~  +the target's own token+" in result.out
    assert text in result.out
    assert "passes wrote" in result.out


def test_ctrl_c_shows_the_figures_of_what_was_seen() -> None:
    options = ("explain", "abc", "--max-tokens", "60", "--draft", "none", "-t", "0.8", "--seed", "5")
    result = invoke(*options, load=Toy(lambda: InterruptedTarget(6)))
    assert result.code == 130
    assert result.err == ""
    assert "5 passes wrote 5 tokens" in result.out
