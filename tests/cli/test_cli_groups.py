"""Options that come together: a command has them as if it had declared them, and the values reach it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import typer
from typer.main import get_command

from sooner.cli import groups as g
from sooner.cli import options as o
from sooner.cli.app import app
from sooner.cli.groups import taking

SHARED = {name for group in (g.ENGINE, g.DRAFTING, g.SAMPLING, g.TRUNCATION, g.PENALTIES) for name in group}


def parameters(command: str) -> Sequence[Any]:
    return get_command(app).commands[command].params  # type: ignore[attr-defined,no-any-return]  # a group


@pytest.mark.parametrize("command", ["run", "chat"])
def test_run_and_chat_have_all_of_them(command: str) -> None:
    assert {parameter.name for parameter in parameters(command)} >= SHARED


@pytest.mark.parametrize("command", ["run", "chat", "explain", "bench", "tune", "doctor"])
def test_they_stand_in_the_order_of_the_panels(command: str) -> None:
    panels = [parameter.rich_help_panel for parameter in parameters(command) if parameter.opts[0].startswith("-")]
    places = [o.PANELS.index(panel) for panel in panels if panel is not None]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("command", "most"), [("run", 512), ("chat", 512), ("explain", 64), ("bench", 128), ("tune", 96)]
)
def test_a_command_has_its_own_defaults(command: str, most: int) -> None:
    (option,) = (parameter for parameter in parameters(command) if parameter.name == "max_tokens")
    assert option.default == most


def test_values_are_in_the_context_and_what_is_named_is_passed() -> None:
    seen: list[Any] = []

    @taking(g.ENGINE, g.SAMPLING, threads=3)
    def command(context: typer.Context, word: str, *, seed: o.Seed = 7, json: o.Json = False) -> None:
        seen.extend(
            [word, seed, json, context.params["threads"], context.params["model"], context.params["temperature"]]
        )

    one = typer.Typer(add_completion=False)
    one.command()(command)
    get_command(one).main(["hi", "-m", "x", "--json", "-t", "0.5"], standalone_mode=False)
    assert seen == ["hi", 7, True, 3, "x", 0.5]
