"""The sandbox chat templates run in. Imports jinja2: import this module only when a template is compiled.

Knows how a template could run away or grow without end, and stops it. Does not know messages or models.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

__all__ = ["TemplateSandbox"]

MAX_LOOPS = 200_000
"""Loop passes one rendering may take, over all its loops."""

MAX_LENGTH = 1 << 24
"""Items or characters that one expression of a template may build."""

_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja with the conventions of Hugging Face chat templates and a budget of loop passes per rendering.

    Beyond Jinja's own sandbox (no private attributes, nothing mutable) every pass of every loop is counted, and an
    expression that would build something huge is refused before it is built. Raises jinja2's ``SecurityError``.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
        self.loops = 0
        self.filters["tojson"] = _tojson
        self.filters["replace"] = _replace
        for name in ("center", "indent", "wordwrap", "format", "xmlattr", "urlize"):
            self.filters.pop(name)
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name)
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        guarded: nodes.Template = _Guard().visit(super()._parse(source, name, filename))
        return guarded

    def tick(self) -> None:
        """Count one loop pass."""
        self.loops += 1
        if self.loops > MAX_LOOPS:
            raise SecurityError("it loops without end")

    def join(self, *values: Any) -> str:
        """Jinja's ``~``, of bounded length."""
        texts = [str(value) for value in values]
        _check_length(sum(map(len, texts)))
        return "".join(texts)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also refuses string methods that pad to any width."""
        return attr not in _PADDING and super().is_safe_attribute(obj, attr, value)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls what the sandbox allows; ``str.replace`` only within the bound."""
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str) and getattr(obj, "__name__", "") == "replace":
            return _replace(owner, *args, **kwargs)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Refuses operations whose result would be huge."""
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    _check_length(len(many) * times)
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check_length(len(left) + len(right))
        elif operator == "**" and (abs(left) > 1 << 32 or abs(right) > 64):
            raise SecurityError("a power it computes is too large")
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("it formats with %")
        return super().call_binop(context, operator, left, right)


class _Guard(NodeTransformer):
    """Puts a tick into every loop and routes ``~`` through `TemplateSandbox.join`."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  # jinja2 finds it by this name
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802  # jinja2 finds it by this name
        self.generic_visit(node)
        return _call("join", node.nodes, node.lineno)


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method, lineno=line), arguments, [], None, None, lineno=line)


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _check_length(length: int) -> None:
    if length > MAX_LENGTH:
        raise SecurityError("it builds something huge")


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    _check_length(len(text) + text.count(old) * len(new))
    return text.replace(old, new, count)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own tojson escapes HTML characters, which the models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
