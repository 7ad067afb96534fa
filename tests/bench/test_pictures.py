"""The README's pictures: well formed, small, true to what they are made from."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from pictures_chart import chart
from pictures_race import race
from test_peers import result, run

TEXT = (
    "def mean(values):\n    if not values:\n        raise ValueError('none & nothing < one')\n    return sum(values)\n"
) * 6
SVG = "{http://www.w3.org/2000/svg}"


def trace(model: str = "m") -> dict[str, Any]:
    tokens = re.findall(r"\n *| ?\w+|\W", TEXT)
    plain = [[10.0 * i, [[token, "target"]]] for i, token in enumerate(tokens)]
    drafted = []
    for i in range(0, len(tokens), 3):
        *guessed, own = tokens[i : i + 3]
        drafted.append([4.0 * i, [*([token, "suffix"] for token in guessed), [own, "target"]]])
    return {"model": model, "plain": plain, "drafted": drafted}


def words(svg: str) -> str:
    return "".join("".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text"))


@pytest.mark.parametrize("language", ["en", "ko"])
def test_both_ways_show_the_same_text(language: str) -> None:
    svg = race(trace(), language)
    assert len(svg.encode()) < 60_000
    assert "prefers-color-scheme:dark" in svg
    assert "prefers-reduced-motion" in svg
    assert re.sub(r"\s", "", words(svg)).count(re.sub(r"\s", "", TEXT)) == 2
    marked = [span for span in ElementTree.fromstring(svg).iter(f"{SVG}tspan") if span.get("class") == "a d"]
    assert marked, "guesses are marked"
    assert all(str(span.get("style")).startswith("animation-name:d") for span in marked), "but none in plain decoding"


def test_pieces_appear_when_they_came() -> None:
    found = trace()
    frames = dict(re.findall(r"@keyframes (\w+)\{0%\{fill-opacity:0\}([\d.]+)%", race(found, "en")))
    plain = [float(frames[f"p{i}"]) for i in range(len(found["plain"]))]
    assert plain == sorted(plain)
    assert float(frames["d1"]) / plain[3] == pytest.approx(12.0 / 30.0, rel=0.05)
    assert plain[-1] < 100.0, "the end stands for a while"


@pytest.mark.parametrize("language", ["en", "ko"])
def test_bars_are_as_long_as_speeds(language: str) -> None:
    runs = []
    for i in range(5):
        runs += [run("sooner", "plain", str(i), 2.0), run("sooner", "default", str(i), 1.0)]
        runs += [run("llama.cpp", "plain", str(i), 4.0), run("llama.cpp", "ngram-mod", str(i), 5.0)]
    about = {"machine": {"processor": "P & Q", "cores": 2}, "settings": {"model": "m"}}
    svg = chart({**result(runs), **about}, language)
    bars = [float(bar.get("width", 0)) for bar in ElementTree.fromstring(svg).iter(f"{SVG}rect")][3:]
    assert [bar / bars[1] for bar in bars] == pytest.approx([0.5, 1.0, 0.25, 0.25], rel=0.01)
    assert "4.00" in words(svg)
    assert "llama.cpp" in words(svg)
