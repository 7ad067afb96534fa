"""A server in a process of its own, and a client as light as can be: what it costs must not be taken for the server's.

Knows HTTP, SSE and /proc. Does not know what is measured.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass
class Answer:
    """One streamed answer: its texts by choice, the log-probabilities of their tokens where they were asked for, when
    its chunks came (seconds from the request), its usage."""

    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    logprobs: list[Any] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    status: int = 0
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def ttft(self) -> float:
        """Seconds to the first chunk."""
        return self.at[0]

    @property
    def said(self) -> tuple[Any, ...]:
        """All that must be the same for the same request."""
        return self.texts, self.reasons, self.logprobs

    def take(self, data: Any) -> None:
        """One chunk."""
        if "error" in data:
            self.error = str(data["error"]["message"])
        for choice in data.get("choices", ()):
            index = choice["index"]
            text = choice["text"] if "text" in choice else choice["delta"].get("content")
            self.texts[index] = self.texts.get(index, "") + (text or "")
            if choice["finish_reason"]:
                self.reasons[index] = choice["finish_reason"]
            if choice.get("logprobs"):
                self.logprobs += choice["logprobs"]["content"]
        if data.get("usage"):
            self.usage = data["usage"]


@dataclass
class Server:
    """A running server; ``process``: whose memory it is."""

    port: int
    process: int = 0

    def resident_mib(self) -> float:
        """Resident memory of its process."""
        status = Path(f"/proc/{self.process}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def metrics(self) -> dict[str, float]:
        """Its Prometheus series, by name and labels."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if not x.startswith("#"))}

    def held(self) -> float:
        """The share of its cache blocks that somebody holds."""
        return sum(v for k, v in self.metrics().items() if k.startswith("sooner:kv_cache_usage_perc"))

    async def ask(self, body: Mapping[str, Any], leave_after: int = 0, path: str = CHAT) -> Answer:
        """One streamed completion; hangs up after ``leave_after`` chunks if that is not 0."""
        payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        begin = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload)
        answer = Answer(status=int((await reader.readline()).split()[1]))
        try:
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    answer.at.append(time.perf_counter() - begin)
                    answer.take(json.loads(line[6:]))
                    if leave_after and len(answer.at) >= leave_after:
                        break
        finally:
            writer.close()
        return answer

    async def ask_all(
        self, bodies: Sequence[Mapping[str, Any]], at_once: int, leaving: int = 0, path: str = CHAT
    ) -> list[Answer]:
        """All of ``bodies``, ``at_once`` at a time; every ``leaving``-th caller hangs up after its third chunk."""
        gate = asyncio.Semaphore(at_once)

        async def one(i: int) -> Answer:
            async with gate:
                return await self.ask(bodies[i], 3 if leaving and i % leaving == leaving - 1 else 0, path)

        return await asyncio.gather(*map(one, range(len(bodies))))

    async def quiet(self) -> None:
        """Wait until nothing runs or waits."""
        names = ("sooner:num_requests_running{", "sooner:num_requests_waiting{")
        while sum(v for k, v in (await asyncio.to_thread(self.metrics)).items() if k.startswith(names)):
            await asyncio.sleep(0.05)


@contextmanager
def running(*argv: str) -> Iterator[Server]:
    """``sooner serve`` with ``argv`` on a free port, once its model is there."""
    command = [sys.executable, "-m", "sooner", "serve", "--port", "0", *argv]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        port = next(int(line.rpartition(":")[2]) for line in lines if "listening on" in line)
        if not any("is ready" in line for line in lines):
            raise RuntimeError("the server did not start")
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield Server(port, process.pid)
        drain.kill()
        drain.wait()
    finally:
        process.terminate()
        process.wait(timeout=60)
