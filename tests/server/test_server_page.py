"""The page at ``/`` as files: complete, from here alone, safe with a model's text, in two languages, legible."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from itertools import combinations
from urllib.request import urlopen

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from page_server import Script, serving, steps_of

from sooner.server import page
from sooner.server.page import HEADERS, assets

FILES = {path: asset.body.decode() for path, asset in assets().items()}
SCRIPTS = {path: text for path, text in FILES.items() if path.endswith(".js")}
HTML, CSS = FILES["/"], FILES["/static/page.css"]
STRINGS: dict[str, dict[str, str]] = json.loads(
    FILES["/static/strings.js"].split("export const STRINGS = ", 1)[1].split(";\n\n", 1)[0]
)


class Reader(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


ELEMENTS = Reader(HTML).found


def linked(files: Mapping[str, str]) -> set[str]:
    """All that the page loads, as it names it."""
    names = {a[key] for _, a in Reader(files["/"]).found for key in ("src", "href") if key in a}
    imports = {f"static/{name}" for text in files.values() for name in re.findall(r'from "\./([\w.]+)"', text)}
    return {name for name in names if not name.startswith("#")} | imports


def test_everything_that_the_page_loads_is_here_and_everything_here_is_loaded() -> None:
    assert {f"/{name}" for name in linked(FILES)} == set(FILES) - {"/"}


def test_a_missing_file_would_be_noticed() -> None:
    assert "static/more.js" in linked({**FILES, "/static/page.js": 'import { x } from "./more.js";'})


def test_nothing_comes_from_elsewhere() -> None:
    allowed = {"http://www.w3.org/2000/svg"}
    for path, text in FILES.items():
        found = set(re.findall(r"""(?:https?:)?//[a-z0-9-]+\.[^\s"'`)]+""", text, re.IGNORECASE))
        assert found <= allowed, path
        assert not re.search(r"@import|url\((?!data:)", text), path
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


def test_addresses_are_relative_so_that_the_page_works_below_a_path() -> None:
    requests = [name for text in SCRIPTS.values() for name in re.findall(r'(?:reach|fetch)\("([^"]+)"', text)]
    assert {"v1/chat/completions", "v1/models", "health"} <= set(requests)
    assert not [name for name in (*requests, *linked(FILES)) if name.startswith("/")]


UNSAFE = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|javascript:|DOMParser"


def test_no_text_can_become_markup() -> None:
    for path, text in SCRIPTS.items():
        assert not re.search(UNSAFE, text), path
    assert not [tag for tag, a in ELEMENTS if any(name.startswith("on") or name == "style" for name in a)]
    assert re.search(UNSAFE, "node.innerHTML = text"), "the check can fail"


def test_the_page_is_small() -> None:
    assert sum(map(len, FILES.values())) < 120_000
    assert all(text.count("\n") < 400 for text in FILES.values())


def test_both_languages_say_everything() -> None:
    english, korean = STRINGS["en"], STRINGS["ko"]
    assert set(STRINGS) == {"en", "ko"}
    assert list(english) == list(korean)
    for key, text in english.items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", korean[key])), key
        assert text.strip()
        assert re.search("[가-힣]", korean[key]) or korean[key] == text or key in ("lang", "langLabel"), key
    assert sum(korean[key] == text for key, text in english.items()) <= 4


CODE = "\n".join(text for path, text in SCRIPTS.items() if path != "/static/strings.js")


def test_every_string_that_is_named_exists() -> None:
    named = {a[key] for _, a in ELEMENTS for key in ("data-t", "data-l", "data-p", "data-h", "data-marked") if key in a}
    spoken = set(re.findall(r'(?:\bt|\blabel)\([^()"`]*"(\w+)"', CODE))
    failures = {f"e_{kind}" for kind in re.findall(r'new Failure\((?:key \? )?"(\w+)"', CODE)}
    numbers = {name + part for name in re.findall(r'^  \["(\w+)", \d', CODE, re.MULTILINE) for part in ("", "Help")}
    assert len(named) > 20
    assert len(spoken) > 20
    assert len(failures) > 3
    assert len(numbers) == 14
    assert named | spoken | failures | numbers <= set(STRINGS["en"])


def test_every_string_is_used() -> None:
    words = set(re.findall(r"\w+", CODE + HTML))
    for key in STRINGS["en"]:
        assert words & {key, key.removeprefix("e_").removesuffix("Help"), key.removesuffix("None")}, key


def test_every_control_has_a_name_for_screen_readers() -> None:
    labelled = {a["for"] for tag, a in ELEMENTS if tag == "label" and "for" in a}
    inside = set(re.findall(r"<label[^>]*>(?:(?!</label>).)*?name=\"(\w+)\"", HTML, re.DOTALL))
    for tag, a in ELEMENTS:
        if tag in ("button", "input", "select", "textarea"):
            named = "data-l" in a or "data-t" in a or a.get("id") in labelled or a.get("name") in inside
            assert named or a.get("id") == "lang", a
        if tag in ("svg", "canvas"):
            assert a.get("aria-hidden") == "true"
    assert {"header", "nav", "main", "footer", "aside", "h1", "noscript"} <= {tag for tag, _ in ELEMENTS}
    assert {a.get("aria-live") for _, a in ELEMENTS} >= {"polite", "off"}


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
def test_text_is_legible_in_both_themes(theme: int) -> None:
    found = colours(theme)
    for ink in ("ink", "soft", "accent", "bad", "c0", "c1", "c2", "c3", "c4"):
        for paper in ("back", "front"):
            assert contrast(found[ink], found[paper]) >= 4.5, (ink, paper)
    assert contrast(found["on-accent"], found["accent"]) >= 4.5
    assert contrast(found["ink"], found["bubble"]) >= 4.5
    assert contrast(found["bad"], found["accent"]) < 4.5, "the check can fail"


def test_drafters_differ_in_shape_and_not_only_in_colour() -> None:
    looks = re.findall(r"^\.(?:drafted|d\d) \{ --c: var\(--(c\d)\); --dash: (\w+); \}", CSS, re.MULTILINE)
    assert len(looks) == 5
    for one, other in combinations(looks, 2):
        assert one[0] != other[0]
        assert one[1] != other[1]


def test_motion_and_contrast_wishes_of_the_system_are_heard() -> None:
    for query in ("prefers-reduced-motion: reduce", "forced-colors: active"):
        assert f"@media ({query})" in CSS
    assert "color-scheme: light dark" in CSS
    assert "isComposing" in SCRIPTS["/static/page.js"], "Enter must end a Korean syllable before it sends"


def test_files_are_sent_as_they_are_and_know_when_they_changed() -> None:
    with serving(Script()) as url, urlopen(url, timeout=5) as reply:
        assert reply.read() == assets()["/"].body
        assert reply.headers["content-security-policy"] == HEADERS["content-security-policy"]
    tags = {asset.etag for asset in assets().values()}
    assert len(tags) == len(FILES)


def test_the_routes_serve_the_page_without_a_key_and_stay_out_of_the_api() -> None:
    app = FastAPI()
    app.router.routes.extend(page.routes())
    client = TestClient(app)
    first = client.get("/")
    assert first.status_code == 200
    assert first.headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/", headers={"if-none-match": first.headers["etag"]}).status_code == 304
    for path, text in FILES.items():
        assert client.get(path).text == text
    assert client.get("/static/../page.py").status_code == 404
    assert client.get("/openapi.json").json()["paths"] == {}


def test_the_test_servers_steps_are_the_text() -> None:
    text = "One two three four five six seven eight."
    steps = steps_of(text)
    assert "".join(piece for step in steps for piece, _ in step) == text
    assert all(step[-1][1] == "target" for step in steps)
    assert max(map(len, steps)) > 2
