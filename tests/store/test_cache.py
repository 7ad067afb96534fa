from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from sooner.errors import CacheError
from sooner.store import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_platform_directory_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SOONER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_dir("models") == tmp_path / "xdg" / "sooner" / "models"


def test_a_cache_that_is_a_file_is_a_cache_error(own_cache: Path) -> None:
    own_cache.write_text("in the way")
    with pytest.raises(CacheError, match="set SOONER_CACHE") as caught:
        cache.cache_dir("models")
    assert "\n" not in str(caught.value)


def test_a_hash_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = cache.content_hash(file)
    stamp = file.stat()
    file.write_bytes(b"two")
    assert cache.content_hash(file) != first
    # Negative control: with the old identity the remembered value is what comes back.
    before = cache.content_hash(file)
    other = tmp_path / "same-size"
    other.write_bytes(b"six")
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    cache.remember(f"sha256\n{other}", {"identity": _identity(other), "sha256": before})
    assert cache.content_hash(other) == before


def _identity(path: Path) -> list[list[int]]:
    found = path.stat()
    return [[found.st_size, found.st_mtime_ns, found.st_ino]]


def test_facts_of_another_key_or_damaged_ones_are_forgotten(own_cache: Path) -> None:
    cache.remember("key", {"value": 1})
    assert cache.recall("key") == {"key": "key", "value": 1}
    (slot,) = (own_cache / "facts").iterdir()
    slot.write_text("{damaged")
    assert cache.recall("key") is None


def test_a_workspace_clears_what_a_killed_one_left(own_cache: Path) -> None:
    stale = own_cache / "building" / "key.stale"
    stale.mkdir(parents=True)
    (stale / "half").write_text("half")
    with cache.workspace("key") as folder:
        assert not stale.exists()
        assert folder.parent == own_cache / "building"
    assert not folder.exists()


def test_publishing_replaces_a_folder_whole(own_cache: Path) -> None:
    final = cache.cache_dir("models") / "m"
    for text in ("old", "new"):
        with cache.workspace("m") as room:
            (room / "model").mkdir()
            (room / "model" / "file").write_text(text)
            cache.publish(room / "model", final)
    assert (final / "file").read_text() == "new"
    assert not list((own_cache / "building").iterdir())


def test_a_lock_waits_and_says_so() -> None:
    order: list[str] = []
    held = threading.Event()

    def other() -> None:
        held.wait()
        with cache.locked("k", lambda: order.append("waiting")):
            order.append("second")

    thread = threading.Thread(target=other)
    thread.start()
    with cache.locked("k"):
        held.set()
        while "waiting" not in order:
            assert thread.is_alive()
        order.append("first")
    thread.join(timeout=10)
    assert order == ["waiting", "first", "second"]


def test_only_the_owner_needs_to_write(own_cache: Path) -> None:
    folder = cache.cache_dir("models")
    assert stat.S_IMODE(folder.stat().st_mode) & 0o700 == 0o700
