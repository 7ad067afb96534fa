"""A small server with the page and the part of the API that the page uses, for tests. Answers are scripted."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sooner.server.page import HEADERS, assets

Piece = tuple[str, str]
PLAIN_MS, DRAFTED_MS = 20.0, 24.0


def steps_of(text: str, sources: tuple[str, ...] = ("suffix", "recycle", "table")) -> list[list[Piece]]:
    """Words in passes of 1, 2, 3 and 4: all but a pass's last were drafted, by each source in turn."""
    words = re.findall(r"\s*\S+|\s+$", text)
    steps: list[list[Piece]] = [[(words[0], "target")]]
    at = 1
    while at < len(words):
        size = 1 + len(steps) % 4
        part = words[at : at + size]
        source = sources[len(steps) % len(sources)]
        steps.append([(word, source if i < len(part) - 1 else "target") for i, word in enumerate(part)])
        at += size
    return steps


@dataclass
class Script:
    """What the server does next. ``requests`` are the bodies it was sent."""

    text: str = "The sky is blue because the air scatters blue light more than red light."
    key: str | None = None
    loading: bool = False
    refuse: tuple[int, dict[str, Any]] | None = None
    break_after: int | None = None
    error_after: int | None = None
    pause: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        script = self.server.script
        asset = self.server.files.get(self.path)
        if asset is not None:
            self.reply(200, asset.body, {**HEADERS, "content-type": asset.media_type})
        elif self.path == "/health":
            self.reply(503 if script.loading else 200, b"{}")
        elif self.path == "/v1/models" and self.allowed():
            body = {"object": "list", "data": [{"id": "SmolLM2-135M-Instruct", "object": "model"}]}
            self.reply(200, json.dumps(body).encode())
        elif self.path != "/v1/models":
            self.reply(404, b"{}")

    def do_POST(self) -> None:
        script = self.server.script
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.allowed():
            return
        script.requests.append(body)
        if script.loading:
            self.refuse(503, {"message": "the model is loading"})
        elif script.refuse is not None:
            status, error = script.refuse
            self.refuse(status, error)
        else:
            self.stream(script, body)

    def allowed(self) -> bool:
        key = self.server.script.key
        if key is None or self.headers.get("authorization") == f"Bearer {key}":
            return True
        self.refuse(401, {"message": "a key is needed", "code": "invalid_api_key"})
        return False

    def refuse(self, status: int, error: dict[str, Any]) -> None:
        whole = {"message": "", "type": "invalid_request_error", "param": None, "code": None, **error}
        self.reply(status, json.dumps({"error": whole}).encode(), {"retry-after": "7"} if status == 429 else {})

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, script: Script, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            for event in self.events(script, plain=body.get("draft") == "none"):
                self.wfile.write(event.encode())
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            script.cancelled.set()

    def events(self, script: Script, *, plain: bool) -> Iterator[str]:
        steps = steps_of(script.text)
        if plain:
            steps = [[(text, "target")] for step in steps for text, _ in step]
        yield _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for i, step in enumerate(steps):
            if i == script.error_after:
                yield f"event: error\n{_event({'error': {'message': 'the device is lost', 'type': 'server_error'}})}"
                return
            if i == script.break_after:
                return
            time.sleep(script.pause)
            content = "".join(text for text, _ in step)
            choice = {"index": 0, "delta": {"content": content}, "finish_reason": None, "sooner": {"pieces": step}}
            yield _event({"choices": [choice]})
        yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        yield _event(_figures(steps, plain=plain))
        yield "data: [DONE]\n\n"


def _figures(steps: list[list[Piece]], *, plain: bool) -> dict[str, Any]:
    tokens = sum(map(len, steps))
    after = tokens - len(steps[0])
    return {
        "choices": [],
        "usage": {"prompt_tokens": 12, "completion_tokens": tokens, "total_tokens": 12 + tokens},
        "metrics": {"speculative_decoding": {"mean_acceptance_length": after / max(1, len(steps) - 1)}},
        "timings": {"predicted_n": tokens, "predicted_ms": (len(steps) - 1) * (PLAIN_MS if plain else DRAFTED_MS)},
    }


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps({'id': 'chatcmpl-1', 'object': 'chat.completion.chunk', **data})}\n\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.files = assets()


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The server's address while it runs on a free port of this machine."""
    server = _Server(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
