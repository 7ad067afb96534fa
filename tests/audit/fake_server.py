"""Small servers of OpenAI's chat API that misbehave in one way each, on a socket of their own."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("a ", "b ", "c ", "d ", "e ", "f ")
CHANCES = (0.4, 0.25, 0.15, 0.1, 0.06, 0.04)
BENT = (0.7, 0.12, 0.08, 0.05, 0.03, 0.02)


@dataclass
class Fake:
    """``drafted``: what speculation does to the answer: "nothing", "other texts" (of the same distribution), "bent"
    (another distribution), "wrong" (greedy answers too), "near" (a near-tie), "placeholders" (log-probabilities of 1).
    ``seeds``: whether they count. ``logprobs``: "given", "none" or "refused". ``tells``: whether it says how much it
    drafted. ``switch``: whether a request may turn speculation off. ``speculates``: whether it does unless told.
    ``failing``: every n-th request; ``how``: "500", "drop" or "garbage".
    """

    drafted: str = "nothing"
    seeds: bool = True
    steady: bool = True
    logprobs: str = "given"
    tells: bool = True
    switch: bool = True
    speculates: bool = True
    failing: int = 0
    how: str = "500"
    key: str = ""
    asked: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        drafting = self.speculates and not (self.switch and body.get("draft") == "none")
        seed = body["seed"] if self.seeds else random.random()
        if drafting and self.drafted == "other texts":
            seed = f"other {seed}"
        chances = BENT if drafting and self.drafted == "bent" else CHANCES
        words: list[int] = []
        for at in range(body["max_tokens"]):
            chance = random.Random(f"{body['messages']}/{seed}/{at}").random()
            likeliest = (at * 5 + len(str(body["messages"]))) % 3
            if not self.steady:
                likeliest = random.randrange(6)
            words.append(likeliest if body["temperature"] == 0 else self._drawn(chances, chance))
            if drafting and at == 3 and body["temperature"] == 0:
                words[-1] = {"wrong": 5, "near": (likeliest + 1) % 3}.get(self.drafted, words[-1])
        return self._reply(body, words, drafting)

    def _drawn(self, chances: tuple[float, ...], chance: float) -> int:
        for word, p in enumerate(chances):
            chance -= p
            if chance < 0:
                return word
        return len(chances) - 1

    def _reply(self, body: dict[str, Any], words: list[int], drafting: bool) -> dict[str, Any]:
        tops = [{"token": WORDS[w], "logprob": math.log(p)} for w, p in zip(range(3), (0.34, 0.33, 0.32), strict=True)]
        logprob = 0.0 if drafting and self.drafted == "placeholders" else math.log(0.34)
        content = [{"token": WORDS[w], "logprob": logprob, "top_logprobs": tops} for w in words]
        given = self.logprobs == "given" and body.get("logprobs")
        choice = {
            "message": {"role": "assistant", "content": "".join(WORDS[w] for w in words)},
            "finish_reason": "length",
            "logprobs": {"content": content} if given else None,
        }
        drafted = {"timings": {"draft_n": 7 if drafting else 0}} if self.tells else {}
        return {"choices": [choice], **drafted}


@contextmanager
def listening(fake: Fake) -> Iterator[str]:
    """The address of ``fake`` on a socket."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None: ...

        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "fake"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.asked += 1
            fake.bodies.append(body)
            if fake.key and self.headers["Authorization"] != f"Bearer {fake.key}":
                self._send(401, {"error": {"message": "a key is required"}})
            elif fake.failing and fake.asked % fake.failing == 0:
                self._fail()
            elif body.get("logprobs") and fake.logprobs == "refused":
                self._send(400, {"error": {"message": "logprobs are not supported"}})
            else:
                self._send(200, fake.answer(body))

        def _fail(self) -> None:
            if fake.how == "500":
                self._send(500, {"error": {"message": "out of luck"}})
            elif fake.how == "garbage":
                self._send(200, {"choices": []})
            else:
                self.close_connection = True
                self.connection.close()

        def _send(self, status: int, data: object) -> None:
            text = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None: ...

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
