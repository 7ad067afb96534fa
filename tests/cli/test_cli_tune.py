"""``sooner tune`` on a toy: the answer, the profile, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commandline import InterruptedTarget, Toy, invoke
from sooner.loading import AUTO_DRAFT
from sooner.store.profile import find_profile
from sooner.targets.toy import ToyTarget
from toy import V

OPTIONS = ("--max-tokens", "12")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SOONER_CACHE", str(path))
    return path


def profiles(cache: Path) -> list[Path]:
    return list(cache.glob("profiles/*.json"))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join("abcdefgh"[i:] + "ab" for i in range(8)))
    return str(path)


def test_the_answer_is_shown_and_kept(prompts: str, cache: Path) -> None:
    result = invoke("tune", prompts, *OPTIONS)
    assert result.code == 0, result.err
    names = {line.split()[0] for line in result.out.splitlines() if line.strip()}
    assert {"plain", "cascade", "suffix", "recycle", "cascade@4", "suffix@8"} <= names
    assert "fastest here: " in result.out
    (path,) = profiles(cache)
    assert str(path) in result.err.replace("\n", "")
    kept = find_profile(ToyTarget(V).fingerprint, pytest.fail)
    assert kept is not None
    assert f"fastest here: {kept.facts['configuration']};" in result.out


def test_json_of_a_dry_run(prompts: str, cache: Path) -> None:
    result = invoke("tune", prompts, "--config", "random@8", "--dry-run", "--json", *OPTIONS)
    assert result.code == 0, result.err
    value = json.loads(result.out)
    assert value["chosen"]["name"] in ("plain", "random@8")
    assert value["reason"]
    assert value["profile"] is None
    assert [one["configuration"] for one in value["figures"]] == ["plain", "random@8"]
    assert profiles(cache) == []


def test_a_recording_serves_as_prompts(tmp_path: Path) -> None:
    trace = str(tmp_path / "trace.jsonl")
    assert invoke("run", "abcabc", "--trace", trace, *OPTIONS).code == 0
    assert invoke("tune", trace, "--config", "suffix@4", *OPTIONS).code == 0
    other = Toy(lambda: ToyTarget(V, seed=9))
    refused = invoke("tune", trace, *OPTIONS, load=other)
    assert refused.code == 2
    assert "recorded with another model" in " ".join(refused.err.split())


def test_built_in_prompts_stand_in(cache: Path) -> None:
    result = invoke("tune", "--prompts", "6", "--config", "suffix@4", *OPTIONS)
    assert result.code == 0, result.err
    assert profiles(cache)


def test_ctrl_c_keeps_what_is_known_if_that_is_enough(
    prompts: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sooner.bench.tune._clear", lambda racing, samples: False)
    early = invoke("tune", prompts, *OPTIONS, load=Toy(lambda: InterruptedTarget(60)))
    assert early.code == 130
    assert "too little was measured" in early.err
    assert profiles(cache) == []
    Path(prompts).write_text("\n".join("abcdefgh"[i % 7 :] + "abcdefgh"[: i // 7] for i in range(28)))
    late = Toy(lambda: InterruptedTarget(12 * 2 * 7 + 18))
    result = invoke("tune", prompts, "--config", "random@8", *OPTIONS, load=late)
    assert result.code == 130
    assert "fastest here: " in result.out
    assert profiles(cache)


def test_json_of_what_is_known_at_ctrl_c(prompts: str, cache: Path) -> None:
    result = invoke(
        "tune", prompts, "--config", "random@8", "--json", *OPTIONS, load=Toy(lambda: InterruptedTarget(80))
    )
    value = json.loads(result.out)
    assert (result.code, value["interrupted"], value["chosen"], value["profile"]) == (130, True, None, None)
    assert "too little was measured" in value["reason"]
    assert [one["configuration"] for one in value["figures"]] == ["plain", "random@8"]
    nothing = invoke("tune", prompts, "--json", *OPTIONS, load=Toy(lambda: InterruptedTarget(1)))
    assert (nothing.code, json.loads(nothing.out)["figures"]) == (130, [])


def test_texts_that_differ_are_no_answer(prompts: str, cache: Path) -> None:
    """Negative control: a target whose rows depend on their neighbours."""
    toy = Toy(lambda: ToyTarget(V, row_dependent=True, sharpness=0.5))
    result = invoke("tune", prompts, "--config", "random@8", *OPTIONS, load=toy)
    assert result.code == 1
    assert "NOT identical" in result.err
    assert profiles(cache) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no prompts"),
        (b"\n \n", "holds no prompts"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"type": "step"}', "has no prompt"),
        (None, "cannot be read"),
    ],
)
def test_bad_files_are_refused_before_anything_is_loaded(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    if content is not None:
        path.write_bytes(content)
    toy = Toy()
    result = invoke("tune", str(path), load=toy)
    assert (result.code, result.out, toy.loads) == (2, "", 0)
    assert message in " ".join(result.err.split())
    assert len(result.err.splitlines()) == 1


def test_run_asks_for_the_profile_unless_a_drafter_is_named() -> None:
    toy = Toy()
    for arguments, draft in (((), AUTO_DRAFT), (("--draft", "cascade"), "cascade"), (("--draft", "none"), None)):
        invoke("run", "abc", "--max-tokens", "4", *arguments, load=toy)
        assert toy.options["draft"] == draft
