"""From what a caller writes (a string, chat messages, token ids, sampling options) to a request.

Knows codecs and templates by contract. Does not know a model.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from sooner.errors import ContextOverflow, InvalidRequest
from sooner.pictures import PictureToken, take_pictures
from sooner.protocols import Encoding, Hearing, Seeing, Target
from sooner.sounds import SoundToken, dictation
from sooner.text import TextCodec
from sooner.types import Request, Sampling, Source

__all__ = [
    "Message",
    "PictureTemplate",
    "Prompt",
    "SoundTemplate",
    "Template",
    "bad_word_ids",
    "chat_ids",
    "demand_pictures",
    "demand_sounds",
    "make_request",
    "source_of",
]

Message = Mapping[str, Any]
Prompt = str | Sequence[Message] | Sequence[int]


class Template(Protocol):
    """Chat messages to the text the model was trained on (`chat.ChatTemplate`)."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as text, ending where the assistant speaks; ``tools`` are functions it may call."""
        ...


@runtime_checkable
class _Reads(Protocol):
    """A template that makes token ids of messages, as it takes more than text to do so."""

    def ids(self, messages: Sequence[Message], **known: Any) -> list[int]:
        """The conversation's ids, ending where the assistant speaks."""
        ...


class PictureTemplate:
    """The template of a model that looks at pictures: ``template`` renders, ``target`` sees what messages show.

    Raises `InvalidRequest` where the text has more or fewer places for pictures than there are pictures,
    `ContextOverflow` where these are too many.
    """

    def __init__(self, template: Template, target: Seeing, codec: TextCodec) -> None:
        self._template = template
        self._target = target
        self._codec = codec

    @property
    def source(self) -> str | None:
        """The template's text."""
        return getattr(self._template, "source", None)

    def render(self, messages: Sequence[Message], **known: Any) -> str:
        """The conversation as text; pictures are marks in it."""
        shown: dict[str, Any] = {"pictures": True, **known}
        return self._template.render(messages, **shown)

    def ids(self, messages: Sequence[Message], **known: Any) -> list[int]:
        """The conversation's ids, each mark being replaced by its picture's tokens."""
        turns, pictures = take_pictures(messages)
        mark, rest = self._target.picture_mark, iter(pictures)
        tokens = self._codec.encode(self.render(turns, **known), special=True)
        if (places := tokens.count(mark)) != len(pictures):
            raise InvalidRequest(
                f"the conversation has {len(pictures)} images and {places} places for them: the model's chat template, "
                "or a mark written as text, decides where they go; give each in a user's message",
                "messages",
            )
        spread: list[int] = []
        for token in tokens:
            spread += self._target.see(next(rest)) if token == mark else [token]
            if token == mark and len(spread) > self._target.context:  # before more pictures are encoded in vain
                raise ContextOverflow(
                    f"the context holds {self._target.context} tokens and the conversation with its {len(pictures)} "
                    "images has more: show fewer or smaller ones",
                    "messages",
                )
        return spread


class SoundTemplate:
    """The template of a model that writes down sounds: what messages may ask for is `sounds.dictation`'s to say."""

    def __init__(self, target: Hearing, codec: TextCodec) -> None:
        self._target = target
        self._codec = codec

    def render(self, messages: Sequence[Message], **known: Any) -> str:
        """Raises `InvalidRequest`: a sound has no text."""
        raise InvalidRequest("this model's prompts are sounds, which have no text: ask for their ids", "messages")

    def ids(self, messages: Sequence[Message], **known: Any) -> list[int]:
        """The sound's token, then those that the decoder begins with."""
        if known.get("tools"):
            raise InvalidRequest(
                "this model writes down what it hears and calls no functions: leave out tools", "tools"
            )
        asked = dictation(messages)
        before = self._codec.encode(f" {asked.before}", bos=False) if asked.before else ()
        return self._target.hear(asked.sound, asked.language, asked.task, before)


def chat_ids(template: Template, codec: TextCodec, messages: Sequence[Message], **known: Any) -> list[int]:
    """A conversation as token ids. ``known``: ``tools`` and whatever else the template reads."""
    if isinstance(template, _Reads):
        return template.ids(messages, **known)
    return codec.encode(template.render(messages, **known), special=True)


def make_request(
    prompt: Prompt,
    sampling: Sampling | None,
    options: Mapping[str, Any],
    *,
    codec: TextCodec,
    template: Template | None,
) -> Request:
    """Build a request. ``options`` are `Sampling` fields (instead of ``sampling``) and:

    ``raw``: continue the string as it is, without the chat template. ``expected``: text (or ids) the answer is
    likely to be, for the ``given`` drafter. ``salt``, ``drafting``, ``constraint``: see `Request`. ``tools``: functions
    that the model is told it may call, in OpenAI's shape; for what goes through the chat template.
    """
    rest = dict(options)
    raw = bool(rest.pop("raw", False))
    expected = rest.pop("expected", ())
    salt = str(rest.pop("salt", ""))
    drafting = bool(rest.pop("drafting", True))
    constraint = rest.pop("constraint", None)
    tools = rest.pop("tools", None)
    if sampling is not None and rest:
        raise InvalidRequest(f"give {', '.join(sorted(rest))} inside the sampling parameters or without them, not both")
    return Request(
        prompt=tuple(_prompt_ids(prompt, raw, codec, template, tools)),
        sampling=sampling if sampling is not None else _sampling(rest),
        expected=tuple(codec.encode(expected, bos=False) if isinstance(expected, str) else expected),
        salt=salt,
        drafting=drafting,
        constraint=constraint,
    )


def source_of(target: Target, prompt: Sequence[int]) -> Source:
    """What of ``prompt`` an encoder of the target reads; nothing where it has none. Raises `InvalidRequest`, also for
    pictures that the target cannot see and sounds that it cannot hear."""
    if any(isinstance(token, PictureToken) for token in prompt):
        demand_pictures(target, "prompt")
    if isinstance(target, Seeing):
        target.check_pictures(prompt)
    if any(isinstance(token, SoundToken) for token in prompt):
        demand_sounds(target, "prompt")
    return target.source(prompt) if isinstance(target, Encoding) else Source(0, target.context)


def demand_pictures(target: Target, param: str) -> None:
    """Raises `InvalidRequest` where ``target`` sees no pictures, with the reason if it has one (``blind``)."""
    if not isinstance(target, Seeing):
        reason = f" ({why})" if (why := getattr(target, "blind", "")) else ""
        raise InvalidRequest(f"this model takes no images{reason}: leave them out, or use one that does", param)


def demand_sounds(target: Target, param: str) -> None:
    """Raises `InvalidRequest` where ``target`` does not listen."""
    if not isinstance(target, Hearing):
        raise InvalidRequest("this model takes no sound: leave it out, or use one that does, such as Whisper", param)


def bad_word_ids(words: Sequence[str], codec: TextCodec) -> list[list[int]]:
    """Each bad word's ids, as the text itself and as it appears behind a space."""
    forms = [form for word in words for form in (word, f" {word}")]
    return [ids for form in forms if (ids := codec.encode(form, bos=False))]


def _sampling(options: Mapping[str, Any]) -> Sampling:
    for name in options:
        if name not in Sampling.__dataclass_fields__:
            near = difflib.get_close_matches(name, Sampling.__dataclass_fields__, n=1)
            hint = f": did you mean {near[0]}?" if near else f": known are {', '.join(Sampling.__dataclass_fields__)}"
            raise InvalidRequest(f"unknown sampling option {name!r}{hint}", name)
    values = dict(options)
    for name in ("stop", "bad_words", "stop_token_ids"):
        value = values.get(name)
        if value is not None:
            values[name] = (value,) if isinstance(value, str) else tuple(value)
    return Sampling(**values)


def _prompt_ids(
    prompt: Prompt, raw: bool, codec: TextCodec, template: Template | None, tools: Sequence[Mapping[str, Any]] | None
) -> Sequence[int]:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise InvalidRequest("the prompt is empty: give some text", "prompt")
        if raw or template is None:
            if tools:
                raise InvalidRequest("tools go through the model's chat template: give chat messages", "tools")
            return codec.encode(prompt)
        prompt = [{"role": "user", "content": prompt}]
    if not prompt:
        raise InvalidRequest("the prompt is empty: give some text, messages or token ids", "prompt")
    messages = [m for m in prompt if isinstance(m, Mapping)]
    ids = [t for t in prompt if isinstance(t, int)]
    if len(ids) == len(prompt):
        if tools:
            raise InvalidRequest("tools go through the model's chat template: give chat messages, not ids", "tools")
        return ids
    if len(messages) < len(prompt):
        raise InvalidRequest("a prompt is a string, a list of chat messages, or a list of token ids", "prompt")
    if raw:
        raise InvalidRequest("raw continues a string; chat messages go through the model's template: drop raw", "raw")
    if template is None:
        raise InvalidRequest("this model has no chat template: pass a string, or use raw=True", "messages")
    known: dict[str, Any] = {"tools": tools} if tools else {}  # templates of others need not know them
    return chat_ids(template, codec, messages, **known)
