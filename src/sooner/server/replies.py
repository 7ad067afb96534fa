"""How an answer looks in OpenAI's two APIs, whole and in chunks.

Knows objects, ids and where each figure goes. Does not know how an answer came about or how it travels.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sooner.batch import Handle, Slot
from sooner.server.figures import figures, usage
from sooner.server.tools import ToolParser
from sooner.text import Detokenizer, TextCodec
from sooner.types import Finish, Step, TokenLogprob

__all__ = ["ChatReply", "Reply", "TextReply", "system_fingerprint"]

_LEAST = -9999.0
"""OpenAI's logprob of what cannot be."""


def system_fingerprint(fingerprint: Mapping[str, str]) -> str:
    """Short for all that a text depends on besides prompt, sampling and seed."""
    facts = "\n".join(f"{name}={value}" for name, value in sorted(fingerprint.items()))
    return f"fp_{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


class Reply(Protocol):
    """One answer being written. ``which`` is the request's number in its body, from 0."""

    id: str

    def chunk(self, which: int, step: Step) -> dict[str, Any]:
        """The chunk that carries ``step``."""
        ...

    def last(self, handles: Sequence[Handle], warning: str | None) -> dict[str, Any]:
        """The chunk after all others, with usage and figures and no choice."""
        ...

    def whole(self, handles: Sequence[Handle], warning: str | None) -> dict[str, Any]:
        """The answer in one piece."""
        ...


class _Reply:
    prefix, kind, chunk_kind = "", "", ""

    def __init__(
        self, codec: TextCodec, model: str, fingerprint: str, *, n: int = 1, usage: bool = False, pieces: bool = False
    ) -> None:
        self.id = self.prefix + secrets.token_hex(12)
        self._codec = codec
        self._n = n
        self._usage = usage
        self._pieces = pieces
        self._detokenizers: dict[tuple[int, int], Detokenizer] = {}
        self._root = {"created": int(time.time()), "model": model, "system_fingerprint": fingerprint}

    def last(self, handles: Sequence[Handle], warning: str | None) -> dict[str, Any]:
        """See `Reply`."""
        root = self._head(self.chunk_kind) | {"choices": [], "usage": usage(handles)}
        return root | figures(handles, warning)

    def whole(self, handles: Sequence[Handle], warning: str | None) -> dict[str, Any]:
        """See `Reply`."""
        choices = [
            self._whole(which * self._n + slot.sequence.choice, handle, slot)
            for which, handle in enumerate(handles)
            for slot in handle.slots
        ]
        root = self._head(self.kind) | {"choices": choices, "usage": usage(handles)}
        return root | figures(handles, warning)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, **self._root}

    def _chunk(self, which: int, choice: dict[str, Any], step: Step) -> dict[str, Any]:
        root = self._head(self.chunk_kind) | {"choices": [choice]}
        if self._usage:
            root["usage"] = None
        if self._pieces:
            choice["sooner"] = {"pieces": self._sources(which, step)}
        return root

    def _sources(self, which: int, step: Step) -> list[tuple[str, str]]:
        """What each token adds to the text, nothing where it ends within a character, and who guessed it."""
        detokenizer = self._detokenizers.setdefault((which, step.choice), self._codec.detokenizer())
        return [(detokenizer.push(token), source) for token, source in zip(step.tokens, step.sources, strict=True)]

    def _whole(self, index: int, handle: Handle, slot: Slot) -> dict[str, Any]:
        raise NotImplementedError

    def _name(self, token: int) -> str:
        """A token's text, or a control token's name."""
        data = self._codec.token_bytes(token)
        return data.decode("utf-8", "replace") if data else str(getattr(self._codec, "token_name", _nameless)(token))


def _nameless(token: int) -> str:
    return ""


def _steps(handle: Handle, slot: Slot) -> list[Step]:
    return [step for step in handle.steps if step.choice == slot.sequence.choice]


def _reason(finish: Finish | None) -> str | None:
    """An answer that was broken off has no reason here: the error object tells."""
    return finish.reason if finish is not None and finish.reason in ("stop", "length") else None


class ChatReply(_Reply):
    """``chat.completion`` and ``chat.completion.chunk``."""

    prefix, kind, chunk_kind = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, *arguments: Any, calls: str | None = None, **options: Any) -> None:
        """``calls``: the format in which function calls are read from the text; None for none."""
        super().__init__(*arguments, **options)
        self._calls = calls
        self._parsers: dict[int, ToolParser] = {}

    def chunk(self, which: int, step: Step) -> dict[str, Any]:
        """See `Reply`."""
        index, reason = which * self._n + step.choice, _reason(step.finish)
        delta: dict[str, Any] = {"role": "assistant"} if step.index == 0 else {}
        if self._calls is None:
            delta["content"] = step.text
        else:
            parser = self._parsers.setdefault(index, self._parser(index))
            said = parser.feed(step.text) + (parser.finish() if step.finish is not None else [])
            delta |= {"content": None} | _joined(said) if step.index == 0 else _joined(said)
            reason = _with_calls(reason, parser)
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(step.logprobs),
            "finish_reason": reason,
        }
        return self._chunk(which, choice, step)

    def _whole(self, index: int, handle: Handle, slot: Slot) -> dict[str, Any]:
        steps = _steps(handle, slot)
        text = "".join(step.text for step in steps)
        asked = handle.request.sampling.logprobs is not None
        entries = [entry for step in steps for entry in step.logprobs or ()]
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        reason = _reason(slot.sequence.finish)
        if self._calls is not None:
            parser = self._parser(index)
            parser.feed(text)
            parser.finish()
            reason = _with_calls(reason, parser)
            if parser.calls:
                message |= {"content": parser.content or None, "tool_calls": parser.calls}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(entries if asked else None),
            "finish_reason": reason,
        }

    def _parser(self, index: int) -> ToolParser:
        return ToolParser(self._calls or "", key=f"{self.id}/{index}")

    def _logprobs(self, entries: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        if entries is None:
            return None
        return {
            "content": [
                {
                    **self._entry(entry.token, entry.logprob),
                    "top_logprobs": [self._entry(token, logprob) for token, logprob in entry.top],
                }
                for entry in entries
            ],
            "refusal": None,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._codec.token_bytes(token)
        return {"token": self._name(token), "logprob": max(logprob, _LEAST), "bytes": list(data)}


def _joined(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Deltas of one step as one: clients take several pieces of one call in a delta for several calls."""
    content = "".join(delta["content"] for delta in deltas if "content" in delta)
    calls: dict[int, dict[str, Any]] = {}
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls", ())):
        call = calls.setdefault(piece["index"], {**piece, "function": {**piece["function"], "arguments": ""}})
        call["function"]["arguments"] += piece["function"]["arguments"]
    return ({"content": content} if content else {}) | ({"tool_calls": list(calls.values())} if calls else {})


def _with_calls(reason: str | None, parser: ToolParser) -> str | None:
    return "tool_calls" if reason == "stop" and parser.calls else reason


class TextReply(_Reply):
    """``text_completion``, whole and in chunks."""

    prefix, kind, chunk_kind = "cmpl-", "text_completion", "text_completion"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._offsets: dict[int, int] = {}

    def chunk(self, which: int, step: Step) -> dict[str, Any]:
        """See `Reply`."""
        index = which * self._n + step.choice
        return self._chunk(which, self._choice(index, step.text, step.logprobs, step.finish), step)

    def _whole(self, index: int, handle: Handle, slot: Slot) -> dict[str, Any]:
        steps = _steps(handle, slot)
        asked = handle.request.sampling.logprobs is not None
        entries = [entry for step in steps for entry in step.logprobs or ()] if asked else None
        return self._choice(index, "".join(step.text for step in steps), entries, slot.sequence.finish)

    def _choice(
        self, index: int, text: str, entries: Sequence[TokenLogprob] | None, finish: Finish | None
    ) -> dict[str, Any]:
        logprobs = None if entries is None else self._logprobs(index, entries)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": _reason(finish)}

    def _logprobs(self, index: int, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets, at = [], self._offsets.get(index, 0)
        for entry in entries:
            offsets.append(at)
            at += len(self._codec.token_bytes(entry.token).decode("utf-8", "replace"))
        self._offsets[index] = at
        tops = [{self._name(t): max(p, _LEAST) for t, p in ((e.token, e.logprob), *e.top)} for e in entries]
        return {
            "tokens": [self._name(entry.token) for entry in entries],
            "token_logprobs": [max(entry.logprob, _LEAST) for entry in entries],
            "top_logprobs": tops,
            "text_offset": offsets,
        }
