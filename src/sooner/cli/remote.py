"""A conversation with a server elsewhere: OpenAI's chat API, streamed. Knows HTTP and SSE, and no model."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer

from sooner.cli.chat import Talk
from sooner.cli.output import Output, say
from sooner.errors import InvalidRequest, SoonerError, one_line
from sooner.remote import Endpoint, RemoteError, said
from sooner.types import Sampling

__all__ = ["Remote", "RemoteChat", "remote_chat"]


class Remote:
    """One server, its first model, and how answers are asked for. ``url`` may end in /v1.

    Raises `InvalidRequest` for an address that is none, `RemoteError` if nobody answers there.
    """

    def __init__(self, url: str, sampling: Sampling, *, key: str | None = None, draft: str | None = None) -> None:
        self._server = Endpoint(url, key=key)
        self.place = self._server.place
        self._options = _options(sampling) | ({"draft": draft} if draft else {})
        self.model = str(self._server.ask("/models")["data"][0]["id"])
        self.last: Mapping[str, Any] = {}

    def answer(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """The answer to a conversation, piece by piece; then ``last`` has usage and figures. Leaving ends it."""
        body = {"model": self.model, "messages": list(messages), **self._options}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        self.last = {}
        try:
            with self._server.call("POST", "/chat/completions", json.dumps(body)) as reply:
                for data in _events(reply):
                    if "error" in data:
                        raise RemoteError(f"the server failed: {said(data)}")
                    for choice in data.get("choices", ()):
                        yield str(choice["delta"].get("content") or "")
                    if data.get("usage"):
                        self.last = data
        except (OSError, http.client.HTTPException) as error:
            raise RemoteError(f"the server went away ({one_line(error)}): try again") from error


class RemoteChat(Talk):
    """A conversation whose answers a server makes."""

    def __init__(self, remote: Remote, sampling: Sampling, *, system: str | None) -> None:
        super().__init__(system=system)
        self._remote = remote
        self._sampling = sampling
        self._told: list[Mapping[str, Any]] = []

    @property
    def name(self) -> str:
        """Who answers, and where."""
        return f"{self._remote.model} at {self._remote.place}"

    def _demand_pictures(self) -> None:
        """The server says so itself."""

    def _same_again(self) -> bool:
        return self._sampling.temperature == 0 or self._sampling.seed is not None

    def _answer(self) -> None:
        pieces: list[str] = []
        try:
            with Output() as out:
                for piece in self._remote.answer(self.messages):
                    pieces.append(piece)
                    out.write(piece)
        except KeyboardInterrupt:
            pass  # what was written of it stays
        except SoonerError:
            if not pieces:
                self._turns.pop()
            raise
        finally:
            if pieces:
                self._turns.append({"role": "assistant", "content": "".join(pieces)})
        if self._remote.last:
            self._told.append(self._remote.last)
            if self._interactive:
                say(_figures([self._remote.last]))

    def _stats(self) -> None:
        if not self._told:
            raise InvalidRequest("there are no figures yet: write a message first")
        say(f"{len(self._told)} answers, {_figures(self._told)}")


def remote_chat(
    context: typer.Context, url: str, key: str | None, sampling: Sampling, system: str | None
) -> RemoteChat:
    """The conversation of ``sooner chat --url``. Raises `InvalidRequest` for options that only a model here could
    honour."""
    for name in ("model", "threads", "precision", "max_context", "offline", "speculative_config", "budget", "verify"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--context" if name == "max_context" else f"--{name.replace('_', '-')}"
            raise InvalidRequest(f"--url talks to a server that has its own {name}: leave out {option}", name)
    drafts = context.params.get("draft") or []
    if len(drafts) > 1:
        raise InvalidRequest("--url takes one --draft: keep one", "draft")
    remote = Remote(url, sampling, key=key, draft=drafts[0] if drafts else None)
    return RemoteChat(remote, sampling, system=system)


def _figures(replies: Sequence[Mapping[str, Any]]) -> str:
    """Tokens and speed, and what drafting did where the server tells."""
    tokens = sum(reply["usage"]["completion_tokens"] for reply in replies)
    timings = [reply["timings"] for reply in replies if "timings" in reply]
    line = f"{tokens} tokens"
    if timings:
        seconds = sum(each["predicted_ms"] for each in timings) / 1e3
        drafted, kept = (sum(each[name] for each in timings) for name in ("draft_n", "draft_n_accepted"))
        line += f", {tokens / max(seconds, 1e-9):.1f} tokens/s, {kept} of {drafted} drafted tokens accepted"
    return line


def _options(sampling: Sampling) -> dict[str, Any]:
    """A sampling as the API names it."""
    names = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "repetition_penalty")
    values = {name: getattr(sampling, name) for name in (*names, "presence_penalty", "frequency_penalty")}
    return values | ({"stop": list(sampling.stop)} if sampling.stop else {})


def _events(reply: http.client.HTTPResponse) -> Iterator[Any]:
    """The data of server-sent events, as far as they are JSON."""
    for line in reply:
        if line.startswith(b"data: {"):
            yield json.loads(line[len(b"data: ") :])
