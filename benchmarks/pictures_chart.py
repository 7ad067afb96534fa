"""The peers' speeds as bars: plain decoding and the fastest setting of each.

Knows the rows of a comparison. Does not know how they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from peers_table import Row, rows

__all__ = ["chart"]

WORDS = {
    "en": {
        "title": "Tokens a second, Spec-Bench, {model} on {processor} ({cores} cores)",
        "plain": "plain decoding",
        "best": "fastest setting",
        "factor": "sooner is {value:.2f}x",
    },
    "ko": {
        "title": "초당 토큰 수, Spec-Bench, {model}, {processor}({cores}코어)",
        "plain": "그대로 디코딩",
        "best": "가장 빠른 설정",
        "factor": "sooner가 {value:.2f}배",
    },
}

WIDTH, LEFT, RIGHT, ROW = 824, 120, 240, 46
STYLE = """
svg{--back:#fff;--ink:#1f2328;--soft:#59636e;--mark:#0969da;--pale:#a8c7ea;--line:#d1d9e0}
@media(prefers-color-scheme:dark){svg{--back:#0d1117;--ink:#f0f6fc;--soft:#9198a1;--mark:#58a6ff;--pale:#2f4f74;--line:#3d444d}}
.b{fill:var(--back)}text{font:13px system-ui,sans-serif;fill:var(--ink)}.h{font-weight:600;font-size:14px}
.s{font-size:12px;fill:var(--soft)}.m{fill:var(--mark)}.q{fill:var(--pale)}.l{stroke:var(--line)}
"""


def chart(result: Mapping[str, Any], language: str) -> str:
    """The SVG. A peer that was not measured has no bar."""
    words, machine = WORDS[language], result["machine"]
    measured = [row for row in rows(result) if row.speed]
    peers = list(dict.fromkeys(row.peer for row in measured))
    scale = (WIDTH - LEFT - RIGHT) / max(row.speed for row in measured)
    about = {"model": result["settings"]["model"], "processor": machine["processor"], "cores": machine["cores"]}
    height = 74 + ROW * len(peers)
    body = [f'<text class="h" x="0" y="16">{escape(words["title"].format(**about))}</text>']
    for x, kind, label in ((0, "q", "plain"), (150, "m", "best")):
        body.append(f'<rect class="{kind}" x="{x}" y="30" width="12" height="12" rx="2"/>')
        body.append(f'<text class="s" x="{x + 18}" y="40">{words[label]}</text>')
    for i, peer in enumerate(peers):
        own = [row for row in measured if row.peer == peer]
        plain, best = next((row for row in own if row.variant == "plain"), None), next(row for row in own if row.best)
        y = 58 + ROW * i
        body.append(f'<text x="0" y="{y + 21}">{escape(peer)}</text>')
        if plain is not None:
            body += _bar("q", y, scale, plain, "")
        factor = "" if best.decoding is None else words["factor"].format(value=best.decoding.value)
        body += _bar("m", y + 17, scale, best, f"{best.variant}{'; ' if factor else ''}{factor}")
    box = f'viewBox="-8 -8 {WIDTH + 16} {height + 8}" width="{WIDTH + 16}" height="{height + 8}"'
    back = f'<rect class="b" x="-8" y="-8" width="{WIDTH + 16}" height="{height + 8}"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">'
    return "\n".join([head, f"<style>{STYLE.strip()}</style>", back, *body, "</svg>"]) + "\n"


def _bar(kind: str, y: int, scale: float, row: Row, told: str) -> list[str]:
    width = row.speed * scale
    label = f"{row.speed:.0f}{'  ' if told else ''}{escape(told)}"
    return [
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="14" rx="2"/>',
        f'<text class="s" x="{LEFT + width + 6:.1f}" y="{y + 11}">{label}</text>',
    ]
