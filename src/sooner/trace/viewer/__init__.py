"""The viewer of traces: one HTML page that needs no network, no build and no server, with a trace inside if wanted.

Knows the page's parts and how they become one file. Does not know what is in a trace.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from importlib.resources import files
from pathlib import Path

from sooner.errors import InvalidRequest

__all__ = ["page", "policy"]

_IMPORT = re.compile(r'^import \{ (.*?) \} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|class|const) ([\w$]+))", re.MULTILINE)
_GZIP = b"\x1f\x8b"


def page(trace: Path | None = None) -> str:
    """The whole page; with ``trace``, that file is inside it (compressed), and shown at once.

    Raises `InvalidRequest` (``param`` "trace") if the file cannot be read. What is in it is the page's to judge.
    """
    style, script = _style(), _script()
    parts = {"POLICY": policy(), "STYLE": style, "SCRIPT": script, "DATA": "" if trace is None else _data(trace)}
    return re.sub(r"\b(POLICY|STYLE|SCRIPT|DATA)\b", lambda match: parts[match[1]], _read("index.html"))


def policy() -> str:
    """The page's content security policy: its own script and style, by their hashes, and nothing else at all."""
    own = f"script-src {_hash(_script())}; style-src {_hash(_style())}"
    return f"default-src 'none'; {own}; img-src data:; base-uri 'none'"


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _style() -> str:
    return _read("viewer.css") + _read("panels.css")


def _script() -> str:
    """All modules as one: each in a scope of its own, after those that it imports."""
    done: dict[str, str] = {}

    def load(name: str) -> None:
        if name in done:
            return
        text = _read(f"{name}.js")
        for needed in _IMPORT.findall(text):
            load(needed[1])
        names = ", ".join(match[1] for match in _EXPORT.findall(text))
        body = _EXPORT.sub(r"\1", _IMPORT.sub(_taken, text))
        done[name] = f"const ${name} = (() => {{\n{body}return {{ {names} }};\n}})();\n"

    load("main")
    return "".join(done.values())


def _taken(match: re.Match[str]) -> str:
    return f"const {{ {match[1].replace(' as ', ': ')} }} = ${match[2]};\n"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(trace: Path) -> str:
    try:
        content = trace.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(f"the trace {trace} cannot be read ({reason}): give another path", "trace") from error
    packed = content if content.startswith(_GZIP) else gzip.compress(content, mtime=0)
    name = html.escape(trace.name, quote=True)
    return f'<script type="text/plain" id="data" data-name="{name}">{base64.b64encode(packed).decode()}</script>'
