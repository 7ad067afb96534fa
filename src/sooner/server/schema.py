"""What a request may say: OpenAI's parameters and vLLM's extensions, each with its bounds; anything else is refused.

Knows names, types and bounds that hold for every server. Does not know models or this server's own limits.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

__all__ = ["ChatBody", "CommonBody", "Message", "Prediction", "StreamOptions", "TextBody", "TextPart"]

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Chance = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
_Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
_Text = Annotated[StrictStr, Field(min_length=1)]
_Ids = Annotated[list[Annotated[StrictInt, Field(ge=0, lt=2**31)]], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class TextPart(_Strict):
    """A part of a message that is text."""

    type: Literal["text"]
    text: StrictStr


class ImageUrl(_Strict):
    """Where a picture is: a base64 data URL; a file's only where the server was told a folder."""

    url: _Text
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(_Strict):
    """A picture in a message, for models that look at pictures."""

    type: Literal["image_url"]
    image_url: ImageUrl


class InputAudio(_Strict):
    """A sound file in base64; what it is is read from the file itself."""

    data: _Text
    format: Literal["wav", "mp3", "flac", "ogg"]


class AudioPart(_Strict):
    """A sound in a message, for models that write down what they hear."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class Message(BaseModel):
    """One turn of a conversation; what a model's template reads besides (``name``, ``tool_calls``) is passed on."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: StrictStr | list[TextPart | ImagePart | AudioPart] | None = None
    name: StrictStr | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: StrictStr | None = None
    refusal: None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing; give a string")
        return self


class Prediction(_Strict):
    """OpenAI's predicted output: what most of the answer will be."""

    type: Literal["content"]
    content: StrictStr | list[TextPart]

    @property
    def text(self) -> str:
        """The prediction in one piece."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(_Strict):
    """How a stream ends."""

    include_usage: StrictBool = False
    include_obfuscation: Literal[False] | None = None


class JsonSchema(_Strict):
    """OpenAI's wrapping of a JSON schema. Every text follows it, whether ``strict`` or not."""

    name: StrictStr | None = None
    description: StrictStr | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(_Strict):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _complete(self) -> ResponseFormat:
        if (self.json_schema is None) == (self.type == "json_schema"):
            raise ValueError("json_schema goes with the type 'json_schema', and with no other")
        return self


class CommonBody(_Strict):
    """What chat and text completions have in common. ``null`` is the same as leaving a parameter out."""

    model: StrictStr | None = None
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    n: Annotated[StrictInt, Field(ge=1, le=128)] = 1
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: _Text | list[_Text] | None = None
    temperature: Annotated[_Number, Field(ge=0, le=100)] = 1.0
    top_p: _Chance = 1.0
    top_k: Annotated[StrictInt, Field(ge=-1)] = 0
    min_p: Annotated[_Number, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[_Number, Field(gt=0, le=10000)] = 1.0
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    logit_bias: dict[str, Annotated[_Number, Field(ge=-100, le=100)]] | None = None
    ignore_eos: StrictBool = False
    min_tokens: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    stop_token_ids: list[Annotated[StrictInt, Field(ge=0, lt=2**31)]] | None = None
    include_stop_str_in_output: StrictBool = False
    max_tokens: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    draft: _Text | None = Field(None, description='"none" decodes plainly; else a drafter, as in kind=ngram,max=8')
    prediction: Prediction | None = None
    response_format: ResponseFormat | None = None
    grammar: _Text | None = Field(None, description="A Lark or GBNF grammar that the text follows")
    regex: _Text | None = Field(None, description="A regular expression for the whole text")
    timeout: Annotated[_Number, Field(gt=0)] | None = Field(
        None, description="Seconds for the whole answer, waiting included; at most the server's own"
    )
    cache_salt: StrictStr | None = None
    sooner_pieces: StrictBool = Field(False, description="Say in every chunk where each of its tokens came from")
    user: StrictStr | None = Field(None, description="A label of the caller's; it has no effect")

    @property
    def heavy(self) -> bool:
        """Whether reading it may take long: a grammar has to be compiled, or a file to be decoded and encoded."""
        return any(form is not None for form in (self.response_format, self.grammar, self.regex))

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, data: Any) -> Any:
        """Without nulls, and in no text half of a surrogate pair, which JSON can write and UTF-8 cannot."""
        if not isinstance(data, dict):
            return data
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("the body must hold valid Unicode (no lone surrogates)") from None
        except RecursionError:
            raise ValueError("the body is nested too deeply") from None
        return {name: value for name, value in data.items() if value is not None}


class ChatBody(CommonBody):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    logprobs: StrictBool = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=1000)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: StrictStr | dict[str, Any] | None = None
    parallel_tool_calls: StrictBool | None = None
    modalities: list[Literal["text"]] | None = None
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @property
    def heavy(self) -> bool:
        """As `CommonBody.heavy`; calls have a grammar, too."""
        parts = (part for message in self.messages if isinstance(message.content, list) for part in message.content)
        return super().heavy or self.tools is not None or any(not isinstance(part, TextPart) for part in parts)


class TextBody(CommonBody):
    """``POST /v1/completions``."""

    prompt: StrictStr | _Ids | list[StrictStr] | list[_Ids]
    logprobs: Annotated[StrictInt, Field(ge=0, le=1000)] | None = None
    echo: Literal[False] | None = None
    suffix: None = None
    best_of: Literal[1] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[int(token) for token in self.prompt if isinstance(token, int)]]
        return [part for part in self.prompt if isinstance(part, str | list)]
