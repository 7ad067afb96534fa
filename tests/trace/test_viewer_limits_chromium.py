"""The viewer with what it should not be given: strangers' traces, broken ones, newer ones, very long ones."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from viewer_traces import PIECES, header, records, step, text_of, write

pytestmark = pytest.mark.page

EVIL = """<img src=x onerror="document.title='bad'"><script>document.title='bad'</script>{name}</style>"""


def give(page: Any, path: Path) -> None:
    """As the picker does, without the dialogue; a long file may take its time on a busy machine."""
    page.set_default_timeout(300_000)
    page.set_input_files("#file", path)


def hostile() -> Iterator[dict[str, Any]]:
    fingerprint = {EVIL: EVIL, "precision": EVIL, "model": {"a": [EVIL]}}
    sampling = {"temperature": EVIL, "verify": EVIL, "top_p": 0.5, "seed": EVIL}
    constraint = {"kind": EVIL}
    names = {"model": EVIL, "drafter": EVIL, "time": EVIL, "sooner": EVIL, "budget": EVIL, "seed": EVIL}
    yield header(fingerprint=fingerprint, sampling=sampling, constraint=constraint, lossless=False, **names)
    yield {
        "type": "tokens",
        "pieces": {**PIECES, "1": EVIL, "2": {"name": EVIL}, "3": "\u202e\u0000", "4": [300, -1, "x"]},
    }
    yield step(0, 0, 0, 0, 5.0)
    for i in range(1, 30):
        record = step(i, i, i % 3, 4, 5.0 + i)
        record["tokens"][0] = i % 5
        record["draft"]["tokens"][:4] = [1, 2, 3, 4]
        record["draft"]["sources"] = [EVIL, f"{EVIL}+b", "c", None, "e"]
        record["sources"] = [EVIL] * len(record["sources"])
        record["top"] = [[[1, 0.5], [2, EVIL], "x", None]]
        yield record
    odd: list[dict[str, Any]] = [
        {"draft": None, "tokens": "x", "path": 7},
        {"draft": {"parents": [5, 0, -9, "x", None], "tokens": [1]}, "tokens": [{"a": 1}, None], "path": [9, -1, "x"]},
        {"draft_ms": "x", "score_ms": None, "at_ms": -5, "text": {"a": 1}, "sources": 3, "p": EVIL, "top": EVIL},
        {"finish": {"reason": EVIL}, "choice": EVIL},
    ]
    for more in odd:
        yield {**step(40, 40, 1, 2, 50.0), **more}
    yield {"type": EVIL, "x": 1}
    yield {"type": "tokens", "pieces": EVIL}
    yield {"type": "footer", "error": EVIL, "choices": [None, 3, {"speculation": {"warning": EVIL}}], "plain_ms": EVIL}


def test_a_hostile_trace_is_only_text(view: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "<b onclick=x>.jsonl", hostile())
    with view(path) as page:
        page.wait_for_selector(".token.here")
        page.focus("#text")
        page.keyboard.press("Home")
        for _ in range(45):
            page.keyboard.press("ArrowRight")
            assert page.locator("#token .face").inner_text().strip()
        for scrub in (0, 300, 600):
            page.evaluate(
                "v => { const s = document.getElementById('scrub'); s.value = v; s.dispatchEvent(new Event('input')) }",
                scrub,
            )
        give(page, path)
        page.click("#lang")
        page.wait_for_timeout(300)
        assert page.title() == "<b onclick=x>.jsonl · sooner"
        assert page.locator("img, script:not([id]):not([type=module]), main style, b[onclick]").count() == 0
        assert "<img src=x" in page.locator("#model").inner_text()
        assert page.locator(".chip.bad").is_visible()


def test_a_character_of_several_tokens_belongs_to_the_last(view: Any, tmp_path: Path) -> None:
    record = {**step(0, 0, 0, 0, 5.0), "tokens": [91, 92, 99], "sources": ["target"] * 3, "text": "😀"}
    path = write(tmp_path / "a.jsonl", [header(), {"type": "tokens", "pieces": PIECES}, record])
    with view(path) as page:
        page.wait_for_selector(".token.here")
        tokens = page.locator(".cell .token")
        assert tokens.evaluate_all("all => all.map((e) => e.textContent)") == ["", "😀", ""]
        assert tokens.evaluate_all("all => all.map((e) => e.dataset.shown ?? '')") == ["⟨f0 9f⟩", "", "<|im_end|>"]


def test_a_stop_string_is_not_part_of_the_text(view: Any, tmp_path: Path) -> None:
    found = list(records(12))
    last = found[-2]
    last["finish"] = {"reason": "stop", "detail": last["text"][-3:]}
    last["text"] = last["text"][:-3]
    with view(write(tmp_path / "a.jsonl", found)) as page:
        page.wait_for_selector(".token.here")
        assert page.locator(".cell").evaluate("e => e.textContent") == text_of(12)[:-3]


def test_a_trace_from_before_pieces_were_written(view: Any, tmp_path: Path) -> None:
    found = [record for record in records(60) if record["type"] != "tokens"]
    for record in found[1:-1]:
        for name in ("at_ms", "p", "top"):
            del record[name]
        del record["draft"]["p"], record["draft"]["q"]
    with view(write(tmp_path / "old.jsonl", found)) as page:
        page.wait_for_selector(".notice:has-text('does not say how its tokens read')")
        assert page.locator(".cell").evaluate("e => e.textContent") == text_of(60)
        page.click("#text .token >> nth=30")
        assert page.locator("#token").inner_text()


def broken() -> dict[str, tuple[bytes, str]]:
    whole = "\n".join(json.dumps(record) for record in records(20)).encode()
    newer = whole.replace(b'"schema": 1', b'"schema": 9', 1)
    return {
        "empty": (b"", "is empty"),
        "text": (b"Hello,\nworld\n", "is not a trace of sooner"),
        "json": (b'{"a": 1}\n{"type": "step"}\n', "is not a trace of sooner"),
        "number": (b"3\n", "is not a trace of sooner"),
        "bytes": (bytes(range(256)) * 300, "is not a trace of sooner"),
        "one line": (b'{"a": "' + b"x" * 40_000_000, "is not a trace of sooner"),
        "newer": (newer, "is in trace format 9; this page reads up to 1"),
        "no schema": (whole.replace(b'"schema": 1, ', b"", 1), "is not a trace of sooner"),
        "bad gzip": (b"\x1f\x8b" + b"x" * 50, "could not be read"),
    }


def test_what_cannot_be_shown_is_said_and_what_was_on_show_stays(view: Any, tmp_path: Path) -> None:
    with view(write(tmp_path / "good.jsonl", records(40))) as page:
        page.wait_for_selector(".token.here")
        for name, (content, words) in broken().items():
            path = tmp_path / "bad"
            path.write_bytes(content)
            give(page, path)
            message = page.wait_for_selector(f".notice.failed:has-text('{words}')")
            assert "What was on show stays." in message.inner_text(), name
            assert message.get_attribute("role") == "alert"
            assert page.locator(".cell").evaluate("e => e.textContent") == text_of(40)
            assert page.locator("#reading").is_hidden()
            page.click(".notice button")
        assert page.locator(".notice").count() == 0


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_was_cut_off_is_shown_as_far_as_it_goes(view: Any, tmp_path: Path, packed: bool) -> None:
    content = "\n".join(json.dumps(record) for record in records(400)).encode()
    path = tmp_path / "cut.jsonl"
    if packed:
        content = gzip.compress(content)
    path.write_bytes(content[: len(content) // 2])
    with view(path) as page:
        page.wait_for_selector(".notice:has-text('cut.jsonl was cut off after')")
        shown = page.locator("#text").evaluate("e => e.textContent")
        assert len(shown) > 100
        assert text_of(400).startswith(shown)


def test_damaged_lines_are_counted_and_left_out(view: Any, tmp_path: Path) -> None:
    lines = [json.dumps(record) for record in records(40)]
    path = tmp_path / "damaged.jsonl"
    path.write_text("\n".join([*lines[:-1], '{"type": "st', "7", *lines[-1:]]))
    with view(path) as page:
        page.wait_for_selector(".notice:has-text('2 damaged lines were left out')")
        assert page.locator("#text").evaluate("e => e.textContent") == text_of(40)


def test_a_hundred_thousand_tokens_stay_smooth(view: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "long.jsonl", records(100_000))
    with view() as page:
        give(page, path)
        page.wait_for_selector(".token.here")
        count = "document.querySelectorAll('*').length"
        assert page.evaluate(count) < 6000
        assert page.locator("#figures").inner_text().count("100,000") == 0
        text = page.locator("#text")
        frames = page.evaluate(
            """async () => {
              const place = document.getElementById("text");
              const begun = performance.now();
              let most = 0;
              for (let i = 0; i < 60; i += 1) {
                place.scrollTop += 900;
                await new Promise(requestAnimationFrame);
                most = Math.max(most, document.querySelectorAll("*").length);
              }
              return [most, 60000 / (performance.now() - begun)];
            }"""
        )
        assert frames[0] < 9000, "elements at any time"
        page.focus("#text")
        page.keyboard.press("End")
        page.wait_for_selector(".token.here[data-i='99999']")
        box, place = page.locator(".token.here").bounding_box(), text.bounding_box()
        assert place["y"] <= box["y"] <= place["y"] + place["height"]
        page.wait_for_timeout(200)
        assert page.evaluate(count) < 9000
        page.evaluate(
            "v => { const s = document.getElementById('scrub'); s.value = v; s.dispatchEvent(new Event('input')) }", 700
        )
        assert page.locator("#drafted .paper > *").count() < 1500
        assert page.locator("#drafted .paper").evaluate("e => e.scrollTop") > 0


@pytest.fixture
def huge(tmp_path: Path) -> Iterator[Path]:
    """More than 200 MB: steps with long lists of alternatives, over and over."""
    path = tmp_path / "huge.jsonl"
    some = list(islice(records(3000), 2, 1000))
    for record in some:
        record["more"] = "x" * 1500
    block = "".join(json.dumps(record) + "\n" for record in some).encode()
    with path.open("wb") as file:
        for record in islice(records(10), 2):
            file.write((json.dumps(record) + "\n").encode())
        while file.tell() < 200_000_000:
            file.write(block)
        file.write(json.dumps(list(records(10))[-1]).encode())
    yield path
    shutil.rmtree(tmp_path)


def test_two_hundred_megabytes_are_read_as_far_as_memory_allows(view: Any, huge: Path) -> None:
    with view() as page:
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        page.evaluate(
            """() => {
              window.longest = 0;
              window.seen = new Set();
              let before = performance.now();
              setInterval(() => {
                window.longest = Math.max(window.longest, performance.now() - before);
                before = performance.now();
                const line = document.getElementById("reading-text").textContent;
                if (!document.getElementById("reading").hidden) window.seen.add(line);
              }, 20);
            }"""
        )
        give(page, huge)
        page.wait_for_selector(".notice:has-text('huge.jsonl is long: shown are its first')")
        page.wait_for_selector(".token.here")
        assert page.evaluate("window.seen.size") > 3, "progress was said"
        metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
        assert metrics["JSHeapUsedSize"] < 400e6
        assert page.evaluate("document.querySelectorAll('*').length") < 9000
        assert "this trace's own steps without a draft" in page.locator("#verdict").inner_text(), "the footer was found"


def test_reading_can_be_cancelled(view: Any, huge: Path) -> None:
    with view() as page:
        give(page, huge)
        page.click("#cancel")
        page.wait_for_timeout(300)
        assert page.locator("#reading").is_hidden()
        assert page.locator("#welcome").is_visible()
