"""``sooner tune --export``: a profile in other engines' words, whole texts; what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from commandline import invoke
from sooner.integrations.flags import ENGINES, export
from sooner.integrations.vllm import METHOD, Options
from sooner.store.profile import Profile, find_profile, save_profile
from sooner.targets.toy import ToyTarget
from toy import V

FACTS = {"time": "2026-11-30T05:00:00+00:00"}
CASCADE = Profile(("cascade",), None, FACTS)

GOLDEN = {
    engine: (Path(__file__).parent / "exports" / f"{engine}.txt").read_text(encoding="utf-8") for engine in ENGINES
}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def flags(profile: Profile, engine: str) -> list[list[str]]:
    return [list(variant.flags) for variant in export(profile, engine).variants]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_default_drafters_in_each_engines_words(engine: str) -> None:
    assert f"{export(CASCADE, engine)}\n" == GOLDEN[engine]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shell_reads_back_what_was_meant(engine: str) -> None:
    profile = Profile(("ngram:max=6", "kind=model,path=my models/small,max=4"), 5, FACTS)
    text = str(export(profile, engine))
    read = [shlex.split(line) for line in text.splitlines() if not line.startswith("#")]
    assert read == flags(profile, engine)
    assert any("my models/small" in argument for arguments in read for argument in arguments)


def test_a_budget_is_a_number_there() -> None:
    profile = Profile(("ngram:min_match=3,max_match=5",), 6, FACTS)
    own, ours = flags(profile, "vllm")
    assert json.loads(own[1]) == {
        "method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 3, "prompt_lookup_max": 5,
    }  # fmt: skip
    assert json.loads(ours[3]) == {"sooner": {"draft": ["ngram:min_match=3,max_match=5"], "budget": 6}}
    assert flags(profile, "sglang") == [
        ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "7"],
    ]
    assert flags(profile, "llama.cpp")[0][-1] == "6"
    assert not any("none included" in note for note in export(profile, "vllm").notes)


def test_what_is_printed_for_the_proposer_is_what_it_reads() -> None:
    for profile in (CASCADE, Profile(("suffix:max=4", "memory"), 8, FACTS)):
        *_, ours = flags(profile, "vllm")
        config = json.loads(ours[1])
        assert config["model"] == METHOD
        given = json.loads(ours[3])["sooner"] if len(ours) > 2 else {}
        options = Options.read(given, config["num_speculative_tokens"])
        assert options.budget == profile.budget
        assert (options.draft or ("cascade",)) == profile.draft


def test_a_draft_model_has_a_place_everywhere_and_a_skipped_layer_nowhere() -> None:
    profile = Profile(("kind=model,path=small,max=4", "layerskip:skip=5-8"), None, FACTS)
    assert flags(profile, "sglang") == [
        shlex.split(
            "--speculative-algorithm STANDALONE --speculative-draft-model-path small --speculative-num-steps 4 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
        )
    ]
    assert flags(profile, "llama.cpp") == [
        shlex.split("--spec-type draft-simple --spec-draft-model small --spec-draft-n-max 4")
    ]
    for engine in ENGINES:
        assert any(note.startswith("layerskip: left out") for note in export(profile, engine).notes)
    nothing = export(Profile(("layerskip",), None, FACTS), "vllm")
    assert [variant.flags for variant in nothing.variants] == [()]


@pytest.mark.parametrize("profile", [Profile((), None, FACTS), Profile(("suffix",), 0, FACTS)])
@pytest.mark.parametrize("engine", ENGINES)
def test_plain_is_plain_everywhere(profile: Profile, engine: str) -> None:
    assert flags(profile, engine) == [[]]
    assert all(line.startswith("#") for line in str(export(profile, engine)).splitlines())


def test_the_command_prints_the_kept_profile() -> None:
    fingerprint = ToyTarget(V).fingerprint
    save_profile(fingerprint, CASCADE)
    shown = invoke("tune", "--export", "vllm")
    assert (shown.code, shown.out) == (0, GOLDEN["vllm"]), shown.err
    told = json.loads(invoke("tune", "--export", "vllm", "--json").out)
    assert (told["engine"], len(told["variants"]), len(told["notes"])) == ("vllm", 2, 5)
    assert find_profile(fingerprint, pytest.fail) == CASCADE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--export", "vllm"), "there is no profile of this model on this machine: run sooner tune first"),
        (("--export", "vlm"), "--export must be one of vllm, sglang, llama.cpp, not 'vlm' (did you mean vllm?)"),
        (("--export", "vllm", "prompts.txt"), "measures nothing: leave out FILE"),
        (("--export", "vllm", "--dry-run"), "leave out --dry-run"),
        (("--export", "vllm", "--layerskip"), "leave out --layerskip"),
        (("--export", "vllm", "--config", "suffix@4"), "leave out --config"),
    ],
)
def test_what_cannot_be_exported(arguments: tuple[str, ...], said: str) -> None:
    refused = invoke("tune", *arguments)
    assert refused.code == 2
    assert said in " ".join(refused.err.split())
    assert not refused.out
