"""Compiling constraints: JSON, JSON schemas, regular expressions and Lark or GBNF grammars, for a tokenizer.

Knows llguidance's grammars and what they may cost. Does not know drafts, models or sampling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

from sooner.constraint.matcher import PARAMS, CompiledConstraint
from sooner.constraint.rehearsal import BOUNDS, affordable
from sooner.constraint.vocabulary import library, tokenizer_of
from sooner.errors import InvalidRequest, one_line
from sooner.text import TextCodec

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["COMPILE_SECONDS", "MAX_SOURCE", "ConstraintKind", "compile_constraint"]

ConstraintKind = Literal["json_object", "json_schema", "regex", "grammar"]

MAX_SOURCE = 1 << 16
"""Characters a schema, regular expression or grammar may have."""

COMPILE_SECONDS = 2
"""Seconds of processor time that compiling may take."""

_SMALL = 4096
_DEAR = ("multipleOf", "allOf", "oneOf", "attern", "format", "$ref")
"""A JSON schema of up to `_SMALL` characters without one of these compiles in no time."""

_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to set JSON: what is left to the model is the content, and no text is an endless run of spaces."""


def compile_constraint(kind: ConstraintKind, value: object, codec: TextCodec, salt: str = "") -> CompiledConstraint:
    """The grammar that every text of a request must follow.

    ``json_object``: any JSON object (``value`` is not read). ``json_schema``: a JSON schema, as a mapping or as text.
    ``regex``: a regular expression for the whole text (Rust's syntax, no look-around). ``grammar``: a Lark grammar in
    llguidance's dialect, or GBNF. JSON is set in one way, ``{"a": 1, "b": [2, 3]}``, its keys in the schema's order.

    Size, time and memory of compiling are bounded. What is remembered of it is found under the same ``salt`` only: how
    long it takes says nothing of what others compiled. Raises `InvalidRequest` naming the parameter, and `MissingExtra`
    without llguidance.
    """
    if kind not in get_args(ConstraintKind):
        raise InvalidRequest(f"a constraint is one of {', '.join(get_args(ConstraintKind))}, not {kind!r}", "kind")
    if not codec.eos_ids:
        raise _refused(kind, "the model's tokenizer names no token that ends a text")
    source = _source(kind, value)
    if len(source) > MAX_SOURCE:
        raise _refused(kind, f"it has {len(source)} characters, the most are {MAX_SOURCE}; shorten it")
    rules, tokenizer = library(), tokenizer_of(codec)
    try:
        grammar = _grammar(kind, source)
    except Exception as error:  # the library refuses in its own ways; GBNF is read by plain Python
        raise _refused(kind, one_line(error)) from error
    if not _cheap(kind, source) and not affordable(grammar, COMPILE_SECONDS, salt):
        raise _refused(kind, f"compiling it takes more than {COMPILE_SECONDS} s or 1 GiB; make it simpler")
    limits = rules.LLParserLimits(**BOUNDS, verbose_errors=False)
    matcher: LLMatcher = rules.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_logit_bias()  # the first row: what no text can satisfy is found here
    if matcher.is_error():
        raise _refused(kind, _reason(matcher.get_error()))
    matcher.reset()
    return CompiledConstraint(kind, source, matcher, codec)


def _cheap(kind: ConstraintKind, source: str) -> bool:
    if kind == "json_schema":
        return len(source) <= _SMALL and not any(word in source for word in _DEAR)
    return kind == "json_object"


def _source(kind: ConstraintKind, value: object) -> str:
    if kind == "json_object":
        return '{"type": "object"}'
    if kind == "json_schema":
        try:
            value = json.loads(value) if isinstance(value, str) else value
            if isinstance(value, Mapping):
                return json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise _refused(kind, one_line(error)) from error
    elif isinstance(value, str) and value:
        return value
    wanted = "a JSON schema" if kind == "json_schema" else "a non-empty string"
    raise InvalidRequest(f"{kind} must be {wanted}, not {type(value).__name__}", PARAMS[kind])


def _grammar(kind: ConstraintKind, source: str) -> str:
    if kind in ("json_object", "json_schema"):
        return str(library().LLMatcher.grammar_from_json_schema(source, overrides=_JSON))
    return str(library().grammar_from(kind, source))


def _refused(kind: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"this {kind} cannot be used: {reason}", PARAMS[kind])


def _reason(message: str) -> str:
    message = message.replace("<non-verbose/>", "").strip()
    if message in ("", "NoExtensionBias", "NoExtension"):
        return "no text can satisfy it"
    if message.startswith("oneOf"):
        return "oneOf is not supported; write anyOf"
    return one_line(ValueError(message))
