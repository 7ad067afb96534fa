"""From a request's body to what the engine runs: sampling, prompts, drafter, and who may read what is cached.

Knows parameters and this server's limits. Does not know HTTP or how an answer is written.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sooner.constraint import ConstraintKind, compile_constraint
from sooner.draft import parse_spec
from sooner.engine import Engine
from sooner.errors import InvalidRequest, nearest
from sooner.pictures import read_served, take_pictures
from sooner.prompt import chat_ids, demand_pictures
from sooner.protocols import Constraint, Drafter
from sooner.server.failures import Refusal
from sooner.server.schema import ChatBody, CommonBody, TextBody
from sooner.server.settings import Settings
from sooner.server.switch import DraftSwitch, checked_specs
from sooner.server.tools import Tools, format_of, template_messages
from sooner.text import TextCodec
from sooner.types import Request, Sampling

__all__ = ["Asked", "Reader"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What one body asks for. ``drafter``: None for the engine's own (or none, where ``drafting`` is off).

    ``calls``: the format in which function calls are to be read from the text; None where none may be made.
    """

    requests: tuple[Request, ...]
    drafter: Drafter | None = None
    calls: str | None = None


class Reader:
    """Reads bodies for one engine. Its methods are safe in any thread. They take milliseconds for long prompts; for a
    body that is ``heavy`` as long as its grammar takes to compile, its pictures and sounds to be decoded and encoded.
    """

    def __init__(self, engine: Engine, switch: DraftSwitch, settings: Settings) -> None:
        self._engine = engine
        self._switch = switch
        self._settings = settings

    def check_model(self, name: str | None) -> None:
        """Refuse, with 404, any model but the one that is served; None and "" mean it."""
        if name and name != self._engine.name:
            hint = nearest(name, [self._engine.name]) or f": this server has {self._engine.name}"
            raise Refusal(404, f"there is no model {name[:100]!r}{hint}", param="model", code="model_not_found")

    def chat(self, body: ChatBody, salt: str) -> Asked:
        """A conversation. Raises `InvalidRequest` or `Refusal`, naming the parameter."""
        self.check_model(body.model)
        if body.top_logprobs is not None and not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
        if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
            raise InvalidRequest("max_tokens is max_completion_tokens's old name: give one of them", "max_tokens")
        tools = _tools(body)
        calls = self._call_format() if tools is not None else None
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        sampling = self._sampling(body, logprobs, "top_logprobs", body.max_completion_tokens or body.max_tokens)
        messages = template_messages([_message(m.model_dump(exclude_none=True)) for m in body.messages])
        messages = self._with_pictures(messages)
        forced = None if tools is None or calls is None else tools.constraint(calls)
        prompt = messages if tools is None else self._render(messages, tools)
        asked = self._asked(body, [prompt], sampling, salt, _constraint(body, self._engine.codec, salt, forced))
        return replace(asked, calls=calls)

    def text(self, body: TextBody, salt: str) -> Asked:
        """One or more texts to continue. Errors as for `chat`."""
        self.check_model(body.model)
        prompts = body.prompts
        if not 0 < len(prompts) <= self._settings.max_prompts:
            raise InvalidRequest(f"prompt must hold 1 to {self._settings.max_prompts} prompts", "prompt")
        if len(prompts) * body.n > self._settings.max_n:
            raise InvalidRequest(f"n times the prompts must be at most {self._settings.max_n}", "n")
        sampling = self._sampling(body, body.logprobs, "logprobs", body.max_tokens or 16)
        return self._asked(body, prompts, sampling, salt, _constraint(body, self._engine.codec, salt))

    def _call_format(self) -> str:
        """How this model writes function calls."""
        source = getattr(self._engine.template, "source", None)
        found = format_of(source) if source is not None else None
        if found is None:
            raise InvalidRequest("tools: this model's chat template knows no function calls; leave them out", "tools")
        return found

    def _render(self, messages: list[dict[str, Any]], tools: Tools) -> list[int]:
        """The conversation's ids, the model being told of ``tools``."""
        template: Any = self._engine.template  # one with a source renders tools
        return chat_ids(template, self._engine.codec, messages, tools=tools.offered)

    def _with_pictures(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Pictures as bytes: what a caller may name is this server's to say, and not the template's."""
        turns, pictures = take_pictures(messages, partial(read_served, folder=self._settings.pictures))
        if pictures:
            demand_pictures(self._engine.target, "messages")
        rest = iter(pictures)
        for turn in turns:
            if isinstance(turn.get("content"), list):
                turn["content"] = [{**p, "image": next(rest)} if p["type"] == "image" else p for p in turn["content"]]
        return turns

    def _asked(
        self, body: CommonBody, prompts: list[Any], sampling: Sampling, salt: str, constraint: Constraint | None
    ) -> Asked:
        specs = checked_specs(body.draft, self._settings.draft_kinds) if body.draft else ()
        expected = body.prediction.text if body.prediction is not None else ""
        if expected and specs == ():
            specs = ("given", "suffix")
        elif expected and specs is not None and parse_spec(specs[0])["kind"] != "given":
            raise InvalidRequest("prediction is read by the drafter given alone: leave out draft, or name it", "draft")
        if body.cache_salt is not None:
            salt = f"{salt}/{hashlib.sha256(body.cache_salt.encode()).hexdigest()[:16]}"  # caches keep it: no long ones
        drafting = {"salt": salt, "drafting": specs is not None, "expected": expected, "constraint": constraint}
        requests = []
        for prompt in prompts:
            raw = isinstance(prompt, str)  # conversations come as messages or ids
            requests.append(self._engine.request(prompt, sampling, **drafting, raw=raw))
        for request in requests:
            self._check_length(request)
        return Asked(tuple(requests), self._switch.drafter(specs) if specs else None)

    def _check_length(self, request: Request) -> None:
        most = self._settings.max_prompt_tokens
        if most is not None and len(request.prompt) > most:
            length = len(request.prompt)
            raise InvalidRequest(f"the prompt has {length} tokens and {most} are allowed: shorten it", "prompt")
        outside = [t for t in request.sampling.logit_bias if t >= self._engine.target.vocab_size]
        if outside:
            raise InvalidRequest(f"logit_bias names token {outside[0]}, which the model does not have", "logit_bias")

    def _sampling(self, body: CommonBody, logprobs: int | None, name: str, max_tokens: int | None) -> Sampling:
        self._check(body, logprobs, name)
        stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        return Sampling(
            temperature=body.temperature if body.temperature >= 1e-6 else 0.0,
            top_k=max(body.top_k, 0),  # vLLM writes "off" as -1
            top_p=body.top_p,
            min_p=body.min_p,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=_biases(body.logit_bias or {}),
            max_tokens=max_tokens,
            min_tokens=body.min_tokens,
            ignore_eos=body.ignore_eos,
            stop=stop,
            stop_token_ids=tuple(body.stop_token_ids or ()),
            include_stop=body.include_stop_str_in_output,
            seed=None if body.seed is None else body.seed % 2**64,
            n=body.n,
            logprobs=logprobs,
            verify=self._settings.verify,
        )

    def _check(self, body: CommonBody, logprobs: int | None, name: str) -> None:
        limits = self._settings
        if body.n > limits.max_n:
            raise InvalidRequest(f"n must be at most {limits.max_n}, not {body.n}", "n")
        if (logprobs or 0) > limits.max_top_logprobs:
            raise InvalidRequest(f"{name} must be at most {limits.max_top_logprobs}, not {logprobs}", name)
        if isinstance(body.stop, list) and len(body.stop) > limits.max_stops:
            raise InvalidRequest(f"stop must hold at most {limits.max_stops} texts, not {len(body.stop)}", "stop")
        if body.timeout is not None and body.timeout > limits.timeout_s:
            raise InvalidRequest(f"timeout must be at most {limits.timeout_s:g} s on this server", "timeout")
        if body.sooner_pieces and not body.stream:
            raise InvalidRequest("sooner_pieces needs stream: true", "sooner_pieces")
        if body.stream_options is not None and not body.stream:
            raise InvalidRequest("stream_options needs stream: true", "stream_options")


def _tools(body: ChatBody) -> Tools | None:
    """The functions that may be called; None for none. Raises `InvalidRequest` naming the parameter."""
    if not body.tools:
        if body.tool_choice not in (None, "none"):
            raise InvalidRequest("tool_choice needs tools: add them, or leave it out", "tool_choice")
        return None
    tools = Tools.read(body.tools, body.tool_choice)
    if body.parallel_tool_calls is False and tools.choice == "auto":
        raise InvalidRequest(
            'parallel_tool_calls: false cannot be promised with tool_choice "auto": use "required" or a name',
            "parallel_tool_calls",
        )
    return None if tools.choice == "none" else tools


def _constraint(
    body: CommonBody, codec: TextCodec, salt: str, call: tuple[ConstraintKind, str] | None = None
) -> Constraint | None:
    """The grammar that the body asks for, compiled; None for none. ``call``: that of a call that must be made.

    Raises `InvalidRequest` naming the parameter.
    """
    asked: list[tuple[str, ConstraintKind, object]] = [("tool_choice", *call)] if call is not None else []
    form = body.response_format
    if form is not None and form.type == "json_object":
        asked.append(("response_format", "json_object", None))
    if form is not None and form.json_schema is not None:
        asked.append(("response_format", "json_schema", form.json_schema.schema_))
    if body.grammar is not None:
        asked.append(("grammar", "grammar", body.grammar))
    if body.regex is not None:
        asked.append(("regex", "regex", body.regex))
    if len(asked) > 1:
        raise InvalidRequest(f"{asked[0][0]} and {asked[1][0]} ask for two forms: keep one of them", asked[1][0])
    return compile_constraint(asked[0][1], asked[0][2], codec, salt) if asked else None


def _biases(given: dict[str, float]) -> dict[int, float]:
    try:
        biases = {int(token): value for token, value in given.items()}
    except ValueError:
        raise InvalidRequest("logit_bias must map token ids to numbers", "logit_bias") from None
    if any(token < 0 for token in biases):
        raise InvalidRequest("logit_bias must map token ids to numbers", "logit_bias")
    return biases


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's newer name of the system role is one that no template knows."""
    return {**message, "role": "system"} if message["role"] == "developer" else message
