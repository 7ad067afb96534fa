"""Plain and drafted decoding of one prompt side by side, as an SVG that plays in a loop.

Knows when each token came and who guessed it. Does not know how that was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = ["race"]

TARGET = "target"
WORDS = {
    "en": {
        "plain": "plain decoding",
        "drafted": "drafting with sooner",
        "passes": "{passes} passes of the model, {seconds:.2f} s",
        "legend": "guessed by a drafter, checked by the model",
        "about": "{model}, a real trace, {factor:g} times slower than it was. The text is the same, bit for bit.",
    },
    "ko": {
        "plain": "그대로 디코딩",
        "drafted": "sooner로 초안을 쓰며 디코딩",
        "passes": "모델 실행 {passes}회, {seconds:.2f}초",
        "legend": "초안 작성기가 짐작하고 모델이 확인한 토큰",
        "about": "{model}의 실제 기록을 {factor:g}배 느리게 재생합니다. 글은 비트 하나까지 같습니다.",
    },
}

COLUMNS, LINE, TOP, PANEL, GAP = 44, 17, 50, 400, 24
SHOWN_S, HOLD_S = 9.0, 3.0
"""How long the slower way plays, and how long the end stands."""

STYLE = """
svg{--back:#fff;--panel:#f6f8fa;--ink:#1f2328;--soft:#59636e;--mark:#0969da;--line:#d1d9e0}
@media(prefers-color-scheme:dark){svg{--back:#0d1117;--panel:#151b23;--ink:#f0f6fc;--soft:#9198a1;--mark:#58a6ff;--line:#3d444d}}
.b{fill:var(--back)}.p{fill:var(--panel);stroke:var(--line)}
text{font:12.5px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:var(--ink);white-space:pre}
.h{font:600 14px system-ui,sans-serif}.s{font:12px system-ui,sans-serif;fill:var(--soft)}
.d{fill:var(--mark);text-decoration:underline}.t{fill:var(--line)}.g{fill:var(--mark);transform-box:fill-box}
.a{animation-duration:DURATIONs;animation-iteration-count:infinite;animation-timing-function:step-end}
.g.a{animation-timing-function:linear}
@media(prefers-reduced-motion:reduce){.a{animation:none}}
"""


def race(result: Mapping[str, Any], language: str) -> str:
    """The SVG."""
    words = WORDS[language]
    ways = {way: result[way] for way in ("plain", "drafted")}
    slowest = max(run[-1][0] for run in ways.values()) / 1e3
    factor = max(1.0, round(SHOWN_S / slowest))
    loop = slowest * factor + HOLD_S
    lines = {way: _lines(run) for way, run in ways.items()}
    height = TOP + LINE * max(len(found) for found in lines.values()) + 46
    width = 2 * PANEL + GAP
    keyframes: list[str] = []
    body: list[str] = []
    for i, (way, run) in enumerate(ways.items()):
        x = i * (PANEL + GAP)
        at = [100 * ms / 1e3 * factor / loop for ms, _ in run]
        keyframes += [_appear(f"{way[0]}{step}", moment) for step, moment in enumerate(at)]
        body += [f'<rect class="p" x="{x + 0.5}" y="0.5" width="{PANEL - 1}" height="{height - 1}" rx="8"/>']
        body += [f'<text class="h" x="{x + 16}" y="26">{words[way]}</text>']
        for row, line in enumerate(lines[way]):
            spans = "".join(_span(way[0], step, text, source) for step, text, source in line)
            body.append(f'<text x="{x + 16}" y="{TOP + LINE * row}">{spans}</text>')
        keyframes.append(_grow(f"{way[0]}g", run, at))
        bar = f'x="{x + 16}" y="{height - 38}" height="4" rx="2"'
        body.append(f'<rect class="t" width="{PANEL - 32}" {bar}/>')
        body.append(f'<rect class="g a" width="{PANEL - 32}" {bar} style="animation-name:{way[0]}g"/>')
        told = words["passes"].format(passes=len(run), seconds=run[-1][0] / 1e3)
        style = f"animation-name:{way[0]}{len(run) - 1}"
        body.append(f'<text class="s a" x="{x + 16}" y="{height - 14}" style="{style}">{told}</text>')
    about = words["about"].format(model=result["model"], factor=factor)
    foot = (
        f'<text class="s" x="2" y="{height + 22}"><tspan class="d">abc</tspan> {words["legend"]}</text>'
        f'<text class="s" x="2" y="{height + 42}">{escape(about)}</text>'
    )
    style = STYLE.strip().replace("DURATION", f"{loop:.2f}") + "".join(keyframes)
    box = f'viewBox="-2 -2 {width + 4} {height + 56}" width="{width + 4}" height="{height + 56}"'
    label = f"{words['plain']} / {words['drafted']}"
    back = f'<rect class="b" x="-2" y="-2" width="{width + 4}" height="{height + 56}"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{label}">'
    return "\n".join([head, f"<style>{style}</style>", back, *body, foot, "</svg>"]) + "\n"


def _lines(run: Sequence[Any]) -> list[list[tuple[int, str, str]]]:
    """The text as lines of at most `COLUMNS`, each of (step, text, drafter)."""
    found: list[list[tuple[int, str, str]]] = [[]]
    column = 0
    for step, (_, pieces) in enumerate(run):
        for text, source in pieces:
            for i, whole in enumerate(text.split("\n")):
                full = not i and bool(whole.strip()) and column + len(whole) > COLUMNS
                part = whole.lstrip(" ") if full else whole
                if i or full:
                    found.append([])
                    column = 0
                if part:
                    found[-1].append((step, part, source))
                    column += len(part)
    return found


def _span(way: str, step: int, text: str, source: str) -> str:
    indent = text[: len(text) - len(text.lstrip())]  # an underlined space is no sight
    kind = "a" if source == TARGET else "a d"
    word = f'<tspan class="{kind}" style="animation-name:{way}{step}">{escape(text.lstrip(), quote=False)}</tspan>'
    return indent + (word if text.strip() else "")


def _appear(name: str, at: float) -> str:
    return f"@keyframes {name}{{0%{{fill-opacity:0}}{at:.2f}%,to{{fill-opacity:1}}}}"


def _grow(name: str, run: Sequence[Any], at: Sequence[float]) -> str:
    """The bar's length by tokens, at a few moments."""
    total, count = sum(len(pieces) for _, pieces in run), 0
    stops = []
    for i, (_, pieces) in enumerate(run):
        count += len(pieces)
        if i % 8 == 0 or i == len(run) - 1:
            stops.append(f"{at[i]:.2f}%{{transform:scaleX({count / total:.3f})}}")
    return f"@keyframes {name}{{{''.join(stops)}to{{transform:scaleX(1)}}}}"
