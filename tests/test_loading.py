"""Draft models are opened as the target was, whoever asks for one later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sooner.audit.drafters import Drafters
from sooner.bench.configuration import parse_configuration
from sooner.bench.theory_run import Lab
from sooner.engine import Engine
from sooner.server.service import _switched
from sooner.targets.toy import ToyTarget
from sooner.types import Sampling
from toy import ToyCodec, V, toy_engine

SPEC = "kind=model,path=draft,thrifty=no"
ASKING: dict[str, Callable[[Engine], Any]] = {
    "a server": lambda engine: _switched(engine).drafter((SPEC,)),
    "an audit": lambda engine: Drafters(engine, [SPEC]).make(SPEC, {}),
    "a bench": lambda engine: parse_configuration(SPEC).equip(engine, engine.controller),
    "a theory": lambda engine: Lab(engine, Sampling(), ()).drafter(SPEC, 4),
}


@pytest.mark.parametrize("asked", ASKING.values(), ids=ASKING)
def test_a_draft_model_is_opened_as_the_target_was(asked: Callable[[Engine], Any]) -> None:
    opened: list[str] = []

    def opening(path: str) -> tuple[ToyTarget, ToyCodec]:
        opened.append(path)
        return ToyTarget(V), ToyCodec()

    engine = toy_engine()
    engine.open_model = opening
    asked(engine)
    assert opened == ["draft"]
