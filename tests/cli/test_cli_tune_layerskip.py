"""``sooner tune --layerskip`` on a toy of six layers: what is found is measured, said and kept, the rest refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commandline import Toy, invoke
from short_toy import NAMES, ShortToy, SkippableToy
from sooner.bench.shortened import Windows
from sooner.draft.layerskip import parse_skip
from sooner.store.profile import find_profile
from toy import V


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Harmless(SkippableToy):
    """No layer of it matters."""

    damage = 0.0


def tune(*arguments: str, kind: type[SkippableToy] = Harmless) -> tuple[int, str, str]:
    load = Toy(lambda: kind(V, context=256))
    options = (
        "--prompts",
        "6",
        "--max-tokens",
        "24",
        "--config",
        "plain",
        "--config",
        "suffix@2",
    )
    result = invoke("tune", *options, *arguments, load=load)
    return result.code, result.out, " ".join(result.err.split())


@pytest.fixture(autouse=True)
def long_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toy.ToyCodec.eos_ids", frozenset())


def test_a_set_is_found_said_measured_and_kept() -> None:
    code, out, err = tune("--layerskip")
    assert code == 0, err
    assert "foresees 100%" in err
    kept = find_profile(SkippableToy(V, context=256).fingerprint, pytest.fail)
    assert kept is not None
    names = parse_skip(kept.skip)
    assert len(names) > len(NAMES) / 2
    facts = kept.facts["layerskip"]
    assert (facts["skip"], facts["left_out"], facts["agreement"]) == (
        kept.skip,
        len(names),
        1.0,
    )
    assert ("layerskip:skip=" in out) == ("is to be expected" in err)
    # another run without a search leaves the set alone
    assert tune()[0] == 0
    again = find_profile(SkippableToy(V, context=256).fingerprint, pytest.fail)
    assert again is not None
    assert again.skip == kept.skip


def test_where_it_does_not_pay_that_is_said_and_nothing_is_measured() -> None:
    class Touchy(SkippableToy):
        damage = 30.0

    code, out, err = tune("--layerskip", "--json", kind=Touchy)
    assert code == 0, err
    assert "layer skipping does not pay here" in err
    value = json.loads(out)
    assert value["layerskip"]["predicted_speed_up"] < 1.03
    assert value["layerskip"]["sublayers"] == len(NAMES)
    assert [one["configuration"] for one in value["figures"]] == ["plain", "suffix@2"]


def test_a_search_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    sets: list[frozenset[str]] = []
    measured = Windows.agree

    def interrupted(windows: Windows, skip: frozenset[str], seen: bool) -> tuple[int, int]:
        if seen and skip:
            if len(sets) == 5:
                raise KeyboardInterrupt
            sets.append(skip)
        return measured(windows, skip, seen)

    with monkeypatch.context() as patch:
        patch.setattr(Windows, "agree", interrupted)
        code, _, err = tune("--layerskip", "--dry-run")
    assert code == 0
    assert "interrupted" in err
    assert "time ran out after 5 sets" in err
    first = list(sets)
    sets.clear()

    def noted(windows: Windows, skip: frozenset[str], seen: bool) -> tuple[int, int]:
        sets.extend([skip] if seen and skip else [])
        return measured(windows, skip, seen)

    monkeypatch.setattr(Windows, "agree", noted)
    code, _, err = tune("--layerskip", "--dry-run")
    assert code == 0
    assert "going on from 5 sets that were measured before" in err
    assert not set(first) & set(sets), "none of them is measured twice"
    assert len(sets) > 10


def test_a_model_whose_layers_were_not_found_rightly_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ShortToy, "leave_out", lambda toy, names: setattr(toy, "left_out", NAMES))
    code, _, err = tune("--layerskip", kind=SkippableToy)
    assert code == 2
    assert "with nothing left out the model foresees" in err


def test_a_target_without_layers_and_bad_options_are_refused() -> None:
    result = invoke("tune", "--prompts", "6", "--max-tokens", "8", "--layerskip", load=Toy())
    assert result.code == 2
    assert "OpenVINO" in result.err
    assert invoke("tune", "--layerskip", "--search-seconds", "0", load=Toy()).code == 2
