"""The server on a real socket: OpenAI's clients, callers who misbehave, signals, and being killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, OpenAI
from serving import MESSAGES, toy_engine
from test_server_lives import BODY, Slow, _mixed, _solo

from commandline import invoke
from listening import listening_with, wait_for
from sooner.errors import InvalidRequest
from sooner.server import Service, Settings
from sooner.server.host import bind
from test_engine_laws import check_free

TESTS = Path(__file__).parent.parent


@contextmanager
def listening(target: Slow | None = None, settings: Settings | None = None) -> Iterator[tuple[str, Service]]:
    """A server in a thread; its address. When it ends, everything of the engine is free."""
    engine = toy_engine(target or Slow(0.0))
    with listening_with(engine, settings) as (address, service):
        yield address, service
    check_free(engine)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def quiet(service: Service) -> None:
    """Until nothing runs."""
    driver = service.ready.driver
    for _ in range(4000):
        if not (driver.running or driver.waiting or driver._choices):
            return
        time.sleep(0.001)
    raise TimeoutError


def test_the_synchronous_client_answers_and_streams() -> None:
    with listening() as (address, _), OpenAI(api_key="none", base_url=f"{address}/v1") as api:
        options: dict[str, Any] = {"model": "toy", "messages": MESSAGES, "max_tokens": 30, "seed": 5}
        whole = api.chat.completions.create(**options)
        stream = api.chat.completions.create(**options, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content
        assert [model.id for model in api.models.list()] == ["toy"]
        text = api.completions.create(model="toy", prompt="abc", max_tokens=5, seed=1, stream=True)
        assert "".join(chunk.choices[0].text for chunk in text)


def test_a_mixed_load_is_each_request_s_solo_run() -> None:
    """120 requests, 16 at once: seeds, temperatures, stops, n, drafters, streams; some callers leave in the middle."""
    wanted = [_mixed(i) for i in range(120)]

    async def load(address: str) -> list[list[str] | None]:
        gate = asyncio.Semaphore(16)
        async with AsyncOpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0) as api:

            async def ask(i: int) -> list[str] | None:
                async with gate:
                    options = wanted[i]
                    if i % 20 == 7:
                        await leave(options)
                        return None
                    if i % 2:
                        reply: Any = await api.chat.completions.create(model="toy", **options)
                        return [choice.message.content for choice in reply.choices]
                    texts = [""] * options["n"]
                    async for chunk in await api.chat.completions.create(model="toy", stream=True, **options):
                        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
                    return texts

            async def leave(options: dict[str, Any]) -> None:
                stream = await api.chat.completions.create(model="toy", stream=True, **options)
                async for _ in stream:
                    break
                await stream.close()

            return await asyncio.gather(*(ask(i) for i in range(len(wanted))))

    with listening(Slow(0.0, context=64, pool_tokens=200), Settings()) as (address, service):
        got = asyncio.run(load(address))
        quiet(service)
    plain = toy_engine(Slow(0.0, context=64), drafter=None)
    for options, texts in zip(wanted, got, strict=True):
        if texts is not None:
            assert texts == [choice.text for choice in _solo(plain, options).choices]
    assert sum(texts is None for texts in got) == 6


def test_callers_who_drop_the_connection_leave_nothing() -> None:
    with listening(Slow()) as (address, service):
        for stream in ("true", "false"):
            body = b'{"messages":[{"role":"user","content":"abc"}],"max_tokens":400,"ignore_eos":true,"stream":%s}'
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", port_of(address))) as raw:
                    raw.sendall(request(body % stream.encode()))
                    if stream == "true":
                        assert raw.recv(100)
                    while not service.ready.driver.running:
                        time.sleep(0.001)
            quiet(service)


def test_a_reader_who_takes_nothing_does_not_hold_the_others_up() -> None:
    with listening(Slow(), Settings(write_timeout_s=0.5)) as (address, service):
        body = b'{"messages":[{"role":"user","content":"abc"}],"max_tokens":200,"ignore_eos":true,"stream":true,"n":4}'
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.connect(("127.0.0.1", port_of(address)))
            raw.sendall(request(body))
            reply = httpx2.post(f"{address}/v1/chat/completions", json=BODY | {"max_tokens": 20}, timeout=30)
            assert reply.status_code == 200
            quiet(service)


def request(body: bytes, headers: bytes = b"") -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


GARBAGE = [
    b"\x00\xff\xfe garbage\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -4\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    request(b"{}", b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(100))),
    request(b"{}", b"X: " + b"y" * 200_000 + b"\r\n"),
    request(b'{"messages": '),
    request(b"\xff\xfe\xfd"),
    request(b"[" * 50_000),
    request(b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}'),
    request(b'{"messages":[{"role":"user","content":"a"}],"seed":' + b"9" * 5000 + b"}"),
    request(b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1e400}'),
    request(b"x" * (3 << 20)),
]


def test_garbage_is_answered_or_dropped_and_the_next_request_is_served() -> None:
    with listening() as (address, service):
        for garbage in GARBAGE:
            with socket.create_connection(("127.0.0.1", port_of(address)), timeout=10) as raw:
                with suppress(OSError):  # the server may close before it has read all of it
                    raw.sendall(garbage)
                    raw.shutdown(socket.SHUT_WR)
                with suppress(OSError):
                    head = raw.recv(200)
                    assert not head or int(head.split()[1]) in range(400, 500), (garbage[:60], head)
            reply = httpx2.post(f"{address}/v1/chat/completions", json=BODY | {"max_tokens": 2})
            assert reply.status_code == 200, garbage[:60]
        quiet(service)


def test_a_huge_body_is_refused_whether_its_length_is_told_or_not() -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 100_000

    with listening() as (address, _):
        for content in (b"x" * 3_000_000, pieces()):
            headers = {"content-type": "application/json"}
            reply = httpx2.post(f"{address}/v1/chat/completions", content=content, headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


def test_who_sends_too_slowly_is_given_up() -> None:
    """A head or a body that never ends would hold a connection for ever, of which there are not many."""
    body = request(b'{"messages":[{"role":"user","content":"abc"}],"max_tokens":2}')
    with listening(settings=Settings(read_timeout_s=0.5)) as (address, _):
        for begun, answered in ((b"", b""), (body[:30], b""), (body[:-5], b"408"), (body + body[:30], b"200")):
            with socket.create_connection(("127.0.0.1", port_of(address)), timeout=60) as raw:
                begin = time.perf_counter()
                raw.sendall(begun)
                got = b""
                with suppress(OSError):
                    while piece := raw.recv(1000):
                        got += piece
                assert 0.4 < time.perf_counter() - begin < 30
            assert got[9:12] == answered
            assert (b'"code":"request_timeout"' in got) == (answered == b"408")
        assert httpx2.get(f"{address}/health").status_code == 200


def test_the_page_and_its_files_are_there() -> None:
    with listening() as (address, _):
        assert "<html" in httpx2.get(address).text
        assert httpx2.get(f"{address}/static/page.js").status_code == 200


PROGRAM = """
import sys
sys.path[:0] = [{tests!r}, {own!r}]
from commandline import Toy
from test_server_lives import Slow
from sooner.cli import main
sys.exit(main(sys.argv[1:], load=Toy(lambda: Slow(0.01, gate={gate!r}))))
"""


@contextmanager
def process(*argv: str, port: int = 0, gate: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``sooner serve`` on a slow toy, in a process of its own; its address."""
    program = PROGRAM.format(tests=str(TESTS), own=str(TESTS / "server"), gate=gate)
    command = [sys.executable, "-c", program, "serve", "--port", str(port), *argv]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert child.stderr is not None
    try:
        line = child.stderr.readline()
        address = line.split()[-1]
        assert address.startswith("http://127.0.0.1:"), line
        wait_for(address)
        yield child, address
    finally:
        child.kill()
        child.communicate()


def test_a_killed_server_starts_again_on_its_port() -> None:
    with process() as (child, address):
        with httpx2.stream("POST", f"{address}/v1/chat/completions", json=BODY | {"stream": True}) as reply:
            lines = reply.iter_lines()
            next(lines)
            child.send_signal(signal.SIGKILL)
            child.wait()
            with pytest.raises(httpx2.HTTPError):
                list(lines)
        with process(port=port_of(address)) as (_, again):
            assert again == address
            reply = httpx2.post(f"{address}/v1/chat/completions", json=BODY | {"max_tokens": 5})
            assert reply.status_code == 200


def refuses(address: str) -> bool:
    """Whether nobody listens any more."""
    try:
        with socket.create_connection(("127.0.0.1", port_of(address)), timeout=1):
            return False
    except OSError:
        return True


def test_sigterm_lets_running_answers_end(tmp_path: Path) -> None:
    """The answer cannot end before the server has stopped listening: what happens first is not left to the clock."""
    gate = tmp_path / "gate"
    with process("--drain", "120", gate=str(gate)) as (child, address):
        body = BODY | {"stream": True, "max_tokens": 60}
        with httpx2.stream("POST", f"{address}/v1/chat/completions", json=body, timeout=120) as reply:
            lines = reply.iter_lines()
            got = [next(lines)]
            child.send_signal(signal.SIGTERM)
            while not refuses(address):
                time.sleep(0.01)
            assert child.poll() is None
            gate.touch()
            got += list(lines)
        data = [line for line in got if line.startswith("data: ")]
        assert data[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in data[-2]
        assert child.wait(timeout=120) == 0
        assert child.stderr is not None
        log = child.stderr.read()
        assert "Traceback" not in log
        for fact in ("drafter:", "verification:", "vocabulary:", "context:", "is ready"):
            assert fact in log


def test_a_second_sigterm_does_not_wait(tmp_path: Path) -> None:
    with process("--drain", "120", gate=str(tmp_path / "never")) as (child, address):
        with httpx2.stream(
            "POST", f"{address}/v1/chat/completions", json=BODY | {"stream": True}, timeout=120
        ) as reply:
            lines = reply.iter_lines()
            next(lines)
            child.send_signal(signal.SIGTERM)
            while not refuses(address):
                time.sleep(0.01)
            child.send_signal(signal.SIGTERM)
            with suppress(httpx2.HTTPError):
                assert "data: [DONE]" not in list(lines)
        child.wait(timeout=60)


REFUSED = [
    (("serve", "--host", "0.0.0.0"), "add --api-key, or --insecure"),
    (("serve", "--api-key", ""), "--api-key is empty"),
    (("serve", "--api-key", "ключ"), "ASCII"),
    (("serve", "--api-key-file", "/no/such/file"), "cannot be read"),
    (("serve", "one", "--model", "two"), "two models"),
    (("serve", "--draft", "ngrm"), "did you mean ngram"),
    (("serve", "--port", "99999"), "--port"),
    (("serve", "--max-body", "1"), "--max-body"),
    (("serve", "--pictures", "/no/such/folder"), "is no folder"),
]


@pytest.mark.parametrize(("argv", "complaint"), REFUSED)
def test_bad_options_are_one_line_and_the_code_2(argv: tuple[str, ...], complaint: str) -> None:
    result = invoke(*argv)
    assert result.code == 2
    assert complaint in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_a_taken_port_and_a_missing_model_are_told() -> None:
    with bind("127.0.0.1", 0) as taken:
        with pytest.raises(InvalidRequest, match="choose another --port"):
            bind("127.0.0.1", taken.getsockname()[1])
        result = invoke("serve", "--port", str(taken.getsockname()[1]))
        assert result.code == 2

    def missing(*arguments: Any, **options: Any) -> Any:
        raise InvalidRequest("there is no model of that name: see sooner models")

    result = invoke("serve", "--port", "0", load=missing)
    assert result.code == 2
    assert "there is no model of that name" in result.err
