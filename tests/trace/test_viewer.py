"""The viewer as a file: complete, from here alone, safe with a stranger's trace, in two languages, legible."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from itertools import combinations
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from viewer_traces import records, write

from sooner.errors import InvalidRequest
from sooner.server.page import routes
from sooner.trace.viewer import page, policy

PARTS = {f.name: f.read_text("utf-8") for f in files("sooner.trace.viewer").iterdir() if not f.name.startswith("__")}
SCRIPTS = {name: text for name, text in PARTS.items() if name.endswith(".js")}
CSS = PARTS["viewer.css"] + PARTS["panels.css"]
CODE = "\n".join(text for name, text in SCRIPTS.items() if name != "strings.js")
STRINGS: dict[str, dict[str, str]] = json.loads(
    SCRIPTS["strings.js"].split("export const STRINGS = ", 1)[1].split(";\n\n", 1)[0]
)


class Reader(HTMLParser):
    """Every element with its attributes, and the text inside each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        if tag in self.CDATA_CONTENT_ELEMENTS:
            self.inside.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is not None:
            self.inside[-1] += data


READ = Reader(page())
ELEMENTS = READ.found


def test_the_page_is_one_file_and_nothing_comes_from_elsewhere() -> None:
    text = page()
    allowed = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"""(?:https?:)?//[a-z0-9-]+\.[^\s"'`)]+""", text, re.IGNORECASE)) <= allowed
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(", text)
    assert [a for _, a in ELEMENTS if "src" in a] == []
    assert not re.search(r"^(import|export) ", text, re.MULTILINE), "every module is inside"
    assert not re.search(r"\b(POLICY|STYLE|SCRIPT|DATA)\b", text)
    assert all(f"const ${name.removesuffix('.js')} = " in text for name in SCRIPTS)


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    rules = dict(part.strip().split(" ", 1) for part in policy().split(";"))
    style, script = (text for text in READ.inside if len(text) > 1000)
    for name, text in (("style-src", style), ("script-src", script)):
        assert rules[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert rules["default-src"] == rules["base-uri"] == "'none'"
    assert "connect-src" not in rules, "what is not named is forbidden"
    (meta,) = (a["content"] for _, a in ELEMENTS if a.get("http-equiv") == "Content-Security-Policy")
    assert meta == policy()


UNSAFE = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|javascript:|DOMParser"


def test_no_text_of_a_trace_can_become_markup() -> None:
    for name, text in SCRIPTS.items():
        assert not re.search(UNSAFE, text), name
    assert not [tag for tag, a in ELEMENTS if any(name.startswith("on") or name == "style" for name in a)]
    assert re.search(UNSAFE, "node.innerHTML = text"), "the check can fail"


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_is_inside_byte_for_byte(tmp_path: Path, packed: bool) -> None:
    path = write(tmp_path / 'a"><script>&.jsonl', records(20))
    content = path.read_bytes()
    if packed:
        path.write_bytes(gzip.compress(content))
    inside = Reader(page(path))
    ((_, data),) = [(tag, a) for tag, a in inside.found if a.get("id") == "data"]
    assert data["data-name"] == path.name
    assert data["type"] == "text/plain"
    encoded = next(text for text in inside.inside if text.startswith("H4sI"))
    assert gzip.decompress(base64.b64decode(encoded, validate=True)) == content
    assert len(inside.found) == len(ELEMENTS) + 1


def test_a_trace_that_is_not_there_is_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^the trace .* cannot be read \(No such file or directory\): give"
    ) as one:
        page(tmp_path / "none.jsonl")
    assert one.value.param == "trace"


def test_the_page_is_small() -> None:
    assert len(page()) < 150_000
    assert all(text.count("\n") < 400 for text in PARTS.values())


def test_both_languages_say_everything() -> None:
    english, korean = STRINGS["en"], STRINGS["ko"]
    assert set(STRINGS) == {"en", "ko"}
    assert list(english) == list(korean)
    for key, text in english.items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", korean[key])), key
        assert text.strip()
        assert re.search("[가-힣]", korean[key]) or korean[key] == text or key in ("lang", "langLabel"), key
    assert sum(korean[key] == text for key, text in english.items()) <= 2


def test_every_string_that_is_named_exists_and_is_used() -> None:
    named = {a[key] for _, a in ELEMENTS for key in ("data-t", "data-l") if key in a}
    spoken = set(re.findall(r'(?:\bt|\blabel)\((?:[^()"`]*, )?"(\w+)"', CODE))
    built = {f"{stem}{end}" for stem in ("phase_", "from_", "e_") for end in re.findall(r'"(\w+)"', CODE)}
    choices = {name for text in re.findall(r"\? (\"\w+\" : \"\w+\")", CODE) for name in re.findall(r"\w+", text)}
    assert len(named) > 30
    assert len(spoken) > 50
    assert named | spoken <= set(STRINGS["en"])
    words = named | spoken | built | choices | set(re.findall(r'"(\w+)"', CODE))
    unused = {key for key in STRINGS["en"] if key.removesuffix("Help") not in words and key not in words}
    assert unused == set()


def test_every_control_has_a_name_for_screen_readers() -> None:
    for tag, a in ELEMENTS:
        if tag in ("button", "input", "select", "textarea", "canvas", "progress"):
            assert "data-l" in a or "data-t" in a or a.get("id") in ("lang", "drop"), a
        if tag == "svg":
            assert a.get("aria-hidden") == "true"
    assert {"header", "nav", "main", "h1", "h2", "h3", "noscript"} <= {tag for tag, _ in ELEMENTS}
    assert any(a.get("aria-live") == "polite" for _, a in ELEMENTS)


def colours(theme: int) -> dict[str, tuple[float, ...]]:
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", CSS)
    return {name: tuple(int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)) for name, *both in pairs for c in [both[theme]]}


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """WCAG 2.2, contrast ratio."""

    def luminance(colour: tuple[float, ...]) -> float:
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_marks_are_legible_in_both_themes(theme: int) -> None:
    found = colours(theme)
    for paper in ("back", "front"):
        for ink in ("ink", "soft", "accent", "bad"):
            assert contrast(found[ink], found[paper]) >= 4.5, (ink, paper)
        for mark in ("c0", "c1", "c2", "c3", "c4", "c5", "draft", "scoring", "verify", "overhead"):
            assert contrast(found[mark], found[paper]) >= 3, (mark, paper)
    assert contrast(found["on-accent"], found["accent"]) >= 4.5
    assert contrast(found["ink"], found["bubble"]) >= 4.5
    assert contrast(found["bad"], found["accent"]) < 4.5, "the check can fail"


MATRICES = {  # Vienot, Brettel and Mollon 1999, in linear RGB
    "protan": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deutan": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}


def seen(colour: tuple[float, ...], kind: str) -> tuple[float, ...]:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return tuple(max(0.0, sum(a * b for a, b in zip(row, linear, strict=True))) ** (1 / 2.2) for row in MATRICES[kind])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("kind", sorted(MATRICES))
def test_the_usual_drafters_differ_for_the_colour_blind(theme: int, kind: str) -> None:
    found = colours(theme)
    for one, other in combinations(("c0", "c1", "c2"), 2):
        apart = sum((a - b) ** 2 for a, b in zip(seen(found[one], kind), seen(found[other], kind), strict=True)) ** 0.5
        assert apart > 0.15, (one, other)
    red, green = (0.8, 0.2, 0.2), (0.35, 0.45, 0.2)
    blind = sum((a - b) ** 2 for a, b in zip(seen(red, "protan"), seen(green, "protan"), strict=True)) ** 0.5
    assert blind < 0.15, "the check can fail"


def test_drafters_differ_in_shape_and_not_only_in_colour() -> None:
    looks = re.findall(r"^\.d(\d) \{ --c: var\(--(c\d)\); --dash: (\w+); \}", CSS, re.MULTILINE)
    assert len({colour for _, colour, _ in looks}) == len(looks) == 6
    assert len({dash for _, _, dash in looks}) == 5
    assert ".d5.drafted" in CSS, "the sixth has the first one's line, and one above"


def test_motion_and_contrast_wishes_of_the_system_are_heard() -> None:
    for query in ("prefers-reduced-motion: reduce", "forced-colors: active"):
        assert f"@media ({query})" in CSS
    assert "prefers-reduced-motion" in SCRIPTS["dom.js"]
    assert "color-scheme: light dark" in CSS


def test_the_server_sends_the_page_with_the_same_policy_and_without_a_key() -> None:
    app = FastAPI()
    app.router.routes.extend(routes())
    client = TestClient(app)
    reply = client.get("/viewer")
    assert reply.status_code == 200
    assert reply.text == page()
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"].startswith(policy())
    assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert client.get("/viewer", headers={"if-none-match": reply.headers["etag"]}).status_code == 304
    assert client.get("/").headers["etag"] != reply.headers["etag"]
