"""What is refused before any cluster is looked for, in lines that say what to do."""

from __future__ import annotations

import os
import socket
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from commandline import invoke
from sooner.errors import InvalidRequest, MissingExtra, ModelNotFound
from sooner.integrations import ray_cluster
from sooner.integrations.ray_cluster import _reach, demand_ray, failed, out_of_memory, reason

INSTALL = 'pip install "sooner[ray]"'


def test_without_ray_the_install_line_is_given(tmp_path: Path) -> None:
    if find_spec("ray") is not None:
        pytest.skip("Ray is installed here")
    with pytest.raises(MissingExtra, match=r"sooner\[ray\]"):
        demand_ray("this")
    served = invoke("serve", "--replicas", "2")
    assert (served.code, INSTALL in served.err) == (2, True), served.err
    prompts = tmp_path / "in.txt"
    prompts.write_text("abc\n")
    answered = invoke("batch", str(prompts), "-o", str(tmp_path / "out.jsonl"), "--ray")
    assert (answered.code, INSTALL in answered.err) == (2, True), answered.err
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("count", ["0", "-1", "two", "1.5", "1001", ""])
def test_a_number_of_replicas_that_is_none(count: str) -> None:
    refused = invoke("serve", "--replicas", count)
    assert refused.code == 2
    assert "--replicas must be a number from 1 to 1000, or auto" in refused.err


def test_replicas_of_a_batch_are_for_ray(tmp_path: Path) -> None:
    prompts = tmp_path / "in.txt"
    prompts.write_text("abc\n")
    for more in (("--ray", "--replicas", "0"), ("--replicas", "2")):
        refused = invoke("batch", str(prompts), "-o", str(tmp_path / "out.jsonl"), *more)
        assert (refused.code, "--replicas must be at least 1" in refused.err) == (2, True), refused.err


@pytest.mark.parametrize("joined", [False, True])
def test_ray_starts_without_its_watch_on_memory_and_a_cluster_that_is_there_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, joined: bool
) -> None:
    seen: list[tuple[object, str | None]] = []
    watch = "RAY_memory_monitor_refresh_ms"

    def init(address: str, **_: object) -> None:
        seen.append((address, os.environ.get(watch)))

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", ray)  # the little of it that is asked
    monkeypatch.setattr(ray_cluster, "_reach", lambda address: None)
    for name in (watch, "RAY_ADDRESS", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "")  # so that what is set there is taken back
        monkeypatch.delenv(name)
    if joined:
        monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert ray_cluster.connect(1.0, verbose=False) is not joined
    assert seen == ([("head:6379", None)] if joined else [("local", "0")])


@pytest.mark.parametrize("address", ["somewhere", "host:", ":6379", "host:port"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(InvalidRequest, match="HOST:PORT"):
        _reach(address)


def answering(sock: socket.socket, said: bytes) -> threading.Thread:
    """Somebody who says one thing to whoever comes first."""

    def answer() -> None:
        caller, _ = sock.accept()
        with caller:
            caller.recv(100)
            caller.sendall(said)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_answers(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        answered = answering(sock, bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # as a server of gRPC does
        _reach(f"{scheme}127.0.0.1:{port}")
        answered.join()
    with pytest.raises(InvalidRequest, match="ray start --head"):
        _reach(f"{scheme}127.0.0.1:{port}")


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"SSH"])
def test_an_address_where_something_else_answers(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        answered = answering(sock, said)
        with pytest.raises(InvalidRequest, match="what answers there is not Ray"):
            _reach(f"127.0.0.1:{sock.getsockname()[1]}")
        answered.join()


def test_an_address_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as sock, pytest.raises(InvalidRequest, match="timed out"):
        _reach(f"127.0.0.1:{sock.getsockname()[1]}")


@pytest.mark.parametrize("address", ["", "auto", "local"])
def test_addresses_that_ray_itself_understands(address: str) -> None:
    _reach(address)


def test_the_reason_is_found_in_all_that_ray_says() -> None:
    told = failed(ModelNotFound("there is no model.gguf:\ncheck the path"))
    said = f"Deploying application sooner failed: Traceback\n  File x\nRuntimeError: {told}\nThe actor died\n" * 3
    assert reason(said) == "sooner cannot start an engine: there is no model.gguf: check the path"
    assert "KeyError: 'x'" in reason(str(failed(KeyError("x"))))
    assert "--max-context" in reason("Worker was killed due to the node running low on memory (OOM)")
    assert reason("x\n" * 500).count("\n") == 0


def test_a_process_killed_from_outside_is_not_said_to_be_out_of_memory() -> None:
    killed = "Worker exit type: SYSTEM_ERROR. Some common causes include: (1) the process was killed by the OOM killer"
    ended = "Worker exit type: NODE_OUT_OF_MEMORY Worker exit detail: killed due to the node running low on memory"
    assert (out_of_memory(killed), out_of_memory(ended)) == (False, True)
