"""Profiles: what was kept is found again here, and whatever does not fit is left alone with one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sooner.loading import _tuned, open_model
from sooner.protocols import Drafter
from sooner.store.profile import Profile, cores, find_profile, save_profile
from sooner.targets.toy import ToyTarget
from toy import ToyCodec, V

HERE = {"model": "abc", "processor": "A (avx2)", "engine": "openvino 1", "kv_precision": "bf16"}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path))
    return tmp_path


def silent(message: str) -> None:
    raise AssertionError(message)


def test_what_is_kept_is_found_again() -> None:
    assert find_profile(HERE, silent) is None
    for profile in (
        Profile(("suffix", "table:max=4"), 8, {"time": "now"}),
        Profile(()),
        Profile(("cascade",), skip="2-4"),
    ):
        save_profile({**HERE, "noise": "1"}, profile)
        assert find_profile({**HERE, "noise": "2"}, silent) == profile, "speed does not depend on the noise"
    assert find_profile({**HERE, "model": "other"}, silent) is None


def spoil(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: r.update(schema=99), "another version of sooner"),
        (lambda r: r["fingerprint"].update(model="xyz"), "another model"),
        (lambda r: r["fingerprint"].update(processor="B"), "another machine"),
        (lambda r: r.update(cores=cores() + 1), "another machine"),
        (lambda r: r["fingerprint"].update(engine="openvino 2"), "another engine"),
        (lambda r: r["fingerprint"].pop("kv_precision"), "another kv precision"),
        (lambda r: r.update(draft="suffix"), "damaged"),
        (lambda r: r.update(budget=-1), "damaged"),
        (lambda r: r.update(skip=3), "damaged"),
        (lambda r: r.pop("fingerprint"), "damaged"),
        (lambda r: r.clear(), "damaged"),
    ],
)
def test_what_does_not_fit_is_ignored_with_one_line(change: Callable[[dict[str, Any]], Any], reason: str) -> None:
    spoil(save_profile(HERE, Profile(("suffix",), 8)), change)
    said: list[str] = []
    assert find_profile(HERE, said.append) is None
    (line,) = said
    assert line.startswith("profile ")
    assert reason in line
    assert line.endswith("sooner tune makes a new one")
    assert "\n" not in line


def test_a_profile_from_before_there_were_skip_sets_is_read() -> None:
    spoil(save_profile(HERE, Profile(("suffix",), 8, skip="2")), lambda record: record.pop("skip"))
    assert find_profile(HERE, silent) == Profile(("suffix",), 8)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null"])
def test_a_damaged_file_is_ignored(content: bytes) -> None:
    save_profile(HERE, Profile(("suffix",))).write_bytes(content)
    said: list[str] = []
    assert find_profile(HERE, said.append) is None
    assert "damaged" in said[0]


def test_loading_uses_it() -> None:
    target, codec, said = ToyTarget(V), ToyCodec(), list[str]()

    def tuned() -> tuple[str | Drafter | None, int | None]:
        said.clear()
        return _tuned(target, codec, "", said.append, open_model, remember=False)

    assert (tuned(), said) == (("cascade", None), [])
    save_profile(target.fingerprint, Profile(("suffix", "ngram:max=3"), 5))
    drafter, budget = tuned()
    assert drafter is not None
    assert not isinstance(drafter, str)
    assert (drafter.name, budget) == ("suffix+ngram", 5)
    assert said[0].startswith("tuned: suffix+ngram:max=3, 5 tokens a pass")
    save_profile(target.fingerprint, Profile(("cascade",), 4))
    assert tuned() == ("cascade", 4), "what else load was told of the default drafters still holds"
    save_profile(target.fingerprint, Profile(()))
    assert tuned() == (None, None)
    save_profile(target.fingerprint, Profile(("gone",)))
    assert tuned() == ("cascade", None)
    assert "is ignored: unknown drafter 'gone'" in said[-1]
