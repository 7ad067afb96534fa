"""Requests to a server that may not know everything, may fail, and may not tell what it does; its replies as records.

Knows OpenAI's chat API and what servers add to it. Does not know what is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sooner.errors import one_line
from sooner.remote import Endpoint, RemoteError

__all__ = ["Asker", "Reply"]

_TRIES = 3
_TOP = 5


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. ``tokens`` with ``logprobs`` and the likeliest at each place, () where the server gives none.

    ``drafted``: tokens it says it drafted, None where it does not say. ``coupled``: whether it says that the text is
    that of plain decoding (sooner's default rule). ``failure``: why there is no answer.
    """

    text: str = ""
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    tops: tuple[tuple[tuple[str, float], ...], ...] = ()
    finish: str = ""
    drafted: int | None = None
    coupled: bool = False
    failure: str = ""

    @property
    def units(self) -> tuple[str, ...]:
        """Its tokens, or where these are not known its characters."""
        return self.tokens or tuple(self.text)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Reply:
        """What `dataclasses.asdict` and JSON made of it."""
        tops = tuple(tuple((str(token), float(p)) for token, p in top) for top in record["tops"])
        return cls(**{**record, "tokens": tuple(record["tokens"]), "logprobs": tuple(record["logprobs"]), "tops": tops})


class Asker:
    """Asks one server, with ``extra`` in every body. What it turns out not to know is left out from then on and noted.

    ``sleep``: how to wait between tries.
    """

    def __init__(
        self, server: Endpoint, model: str, extra: Mapping[str, Any], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.model = model
        self.place = server.place
        self.notes: dict[str, None] = {}
        self.logprobs = True
        self._server = server
        self._extra = dict(extra)
        self._sleep = sleep

    @classmethod
    def reach(cls, server: Endpoint, extra: Mapping[str, Any]) -> Asker:
        """An asker of the server's first model. Raises `RemoteError` if nobody answers there."""
        listed = server.ask("/models")
        try:
            return cls(server, str(listed["data"][0]["id"]), extra)
        except (KeyError, IndexError, TypeError) as error:
            raise RemoteError(f"{server.place} lists no model: check --url") from error

    def ask(self, prompt: Any, *, temperature: float, seed: int, max_tokens: int) -> Reply:
        """The answer; one with a ``failure`` where three tries bring none."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": temperature,
            "top_p": 1.0,
            "seed": seed,
            "max_tokens": max_tokens,
            **self._extra,
        }
        failure = ""
        for attempt in range(_TRIES):
            try:
                return self._once(body)
            except RemoteError as error:
                failure = str(error)
                if error.status is not None and 400 <= error.status < 500 and error.status not in (408, 429):
                    break
                self._sleep(0.5 * 2**attempt)
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                failure = f"{self.place} answers in a form that OpenAI's API does not have ({one_line(error)})"
                break
        return Reply(failure=failure)

    def _once(self, body: Mapping[str, Any]) -> Reply:
        if self.logprobs:
            try:
                return _read(self._server.ask("/chat/completions", {**body, "logprobs": True, "top_logprobs": _TOP}))
            except RemoteError as error:
                if error.status is None or not 400 <= error.status < 500:
                    raise
                plain = _read(self._server.ask("/chat/completions", body))  # raises again if it was not the logprobs
                self.logprobs = False
                self.notes[f"{self.place} refuses log-probabilities: texts are compared, not their probabilities"] = (
                    None
                )
                return plain
        return _read(self._server.ask("/chat/completions", body))


def _read(data: Mapping[str, Any]) -> Reply:
    choice = data["choices"][0]
    message = choice["message"]
    entries: Sequence[Mapping[str, Any]] = (choice.get("logprobs") or {}).get("content") or ()
    figures = (data.get("metrics") or {}).get("speculative_decoding") or {}
    drafted = figures.get("num_draft_tokens", (data.get("timings") or {}).get("draft_n"))
    return Reply(
        text=str(message.get("content") or ""),
        tokens=tuple(str(entry["token"]) for entry in entries),
        logprobs=tuple(float(entry["logprob"]) for entry in entries),
        tops=tuple(
            tuple((str(top["token"]), float(top["logprob"])) for top in entry.get("top_logprobs") or ())
            for entry in entries
        ),
        finish=str(choice.get("finish_reason")),
        drafted=None if drafted is None else int(drafted),
        coupled=figures.get("verify") == "coupled",
    )
