from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_gguf import write_gguf

from sooner.errors import ModelNotFound
from sooner.store import resolve
from sooner.store.hub import choose_gguf

REPO = "someone/tiny-GGUF"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAMES = ["tiny-Q4_K_M.gguf", "tiny.Q8_0.gguf", "tiny-IQ4_XS.gguf", "sub/tiny-f16.gguf", "README.md"]


@pytest.mark.parametrize(
    ("quant", "chosen"),
    [
        (None, "tiny-Q4_K_M.gguf"),
        ("Q8_0", "tiny.Q8_0.gguf"),
        ("q8_0", "tiny.Q8_0.gguf"),
        ("IQ4_XS", "tiny-IQ4_XS.gguf"),
        ("F16", "sub/tiny-f16.gguf"),
    ],
)
def test_the_quantisation_picks_the_file(quant: str | None, chosen: str) -> None:
    assert choose_gguf(REPO, NAMES[:4], quant) == chosen


def test_an_absent_quantisation_lists_what_there_is() -> None:
    with pytest.raises(ModelNotFound, match=r"no GGUF file in Q5_1; it has: F16, IQ4_XS, Q4_K_M, Q8_0"):
        choose_gguf(REPO, NAMES[:4], "Q5_1")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # The client reads its settings once, at import.
    from huggingface_hub import constants

    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def cached(hub: Path, repo: str, files: dict[str, bytes]) -> None:
    """A repository as the client keeps it."""
    folder = hub / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    for name, content in files.items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(content)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)


def test_a_cached_repository_serves_offline(environment: Path, tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "x.gguf").read_bytes()
    cached(environment, REPO, {"tiny.Q8_0.gguf": content, "README.md": b""})
    files = resolve(f"{REPO}:Q8_0", offline=True)
    assert (files.name, files.source) == (f"{REPO}:Q8_0", f"{REPO}:Q8_0")
    assert resolve(f"{REPO}:Q8_0", offline=True) == files


def test_what_is_not_cached_is_refused_offline(environment: Path) -> None:
    with pytest.raises(ModelNotFound, match="run once without --offline") as caught:
        resolve("someone/else", offline=True)
    assert "\n" not in str(caught.value)


class Hub(http.server.BaseHTTPRequestHandler):
    """The few answers of the hub that the client asks for."""

    content = b""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        if self.path.startswith(f"/api/models/{REPO}"):
            siblings = [{"rfilename": "tiny.Q8_0.gguf"}, {"rfilename": "README.md"}]
            payload = json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings, "tags": []}).encode()
        elif self.path.startswith(f"/{REPO}/resolve/"):
            payload = self.content
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(payload)))
        self.send_header(
            "Content-Type", "application/json" if self.path.startswith("/api") else "application/octet-stream"
        )
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", '"0000"')
        self.end_headers()
        if body:
            self.wfile.write(payload)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from huggingface_hub import constants

    Hub.content = write_gguf(tmp_path / "served.gguf").read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", address)
    yield
    server.shutdown()
    server.server_close()


def test_a_repository_is_fetched_and_imported(hub: None) -> None:
    said: list[str] = []
    files = resolve(REPO, progress=said.append)
    assert files.name == REPO
    assert said[0] == f"fetching {REPO} (tiny.Q8_0.gguf) from Hugging Face"
    assert resolve(REPO, offline=True) == files


def test_an_unknown_repository_is_explained(hub: None) -> None:
    with pytest.raises(ModelNotFound, match="there is no such model") as caught:
        resolve("nobody/nothing")
    assert "\n" not in str(caught.value)


def test_an_unreachable_hub_leaves_the_cached_copy(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", "http://127.0.0.1:9")
    cached(environment, REPO, {"tiny.Q8_0.gguf": write_gguf(tmp_path / "x.gguf").read_bytes()})
    said: list[str] = []
    assert resolve(REPO, progress=said.append).name == REPO
    assert said[0] == f"the Hugging Face hub cannot be reached; using the cached {REPO}"


def test_an_unreachable_hub_is_explained(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match="the hub cannot be reached") as caught:
        resolve("someone/unreachable")
    assert "\n" not in str(caught.value)
