"""The viewer in a real browser: text, marks, steps, playback, comparison, keyboard, languages, themes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from viewer_traces import PLAIN_MS, SOURCES, header, records, text_of, word, write

from sooner.server.page import routes

pytestmark = pytest.mark.page

TOKENS = 120
STEPS = [record for record in records(TOKENS) if record["type"] == "step"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "answer.jsonl", records(TOKENS))


def text(page: Any, side: int = 0) -> str:
    cells = page.locator(f".cell[data-side='{side}']")
    return str("".join(cell.evaluate("e => e.textContent") for cell in cells.all()))


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def choose(page: Any, path: Path, side: int = 0) -> None:
    with page.expect_file_chooser() as chooser:
        page.click(("#open", "#other")[side] if page.locator("#view").is_visible() else "#drop")
    chooser.value.set_files(path)


def test_the_text_its_marks_and_its_figures(view: Any, trace: Path) -> None:
    with view(trace) as page:
        page.wait_for_selector(".token.here")
        assert text(page) == text_of(TOKENS)
        origins = [source for record in STEPS for source in record["sources"]]
        drafted = [i for i, source in enumerate(origins) if source != "target"]
        assert [int(e.get_attribute("data-i")) for e in page.locator(".text .drafted").all()] == drafted
        for look in range(3):
            name = page.locator(f"#legend .d{look}").inner_text()
            marked = page.locator(f".text .d{look}").all()
            assert {origins[int(e.get_attribute("data-i"))] for e in marked} == {name}
            assert len(marked) == origins.count(name)
        style = page.locator(".text .d1").first.evaluate("e => getComputedStyle(e).textDecorationStyle")
        assert style == "dashed", "drafters differ in shape too"
        page.click("#marks")
        line = page.locator(".text .d1").first.evaluate("e => getComputedStyle(e).textDecorationLine")
        assert line == "none"
        figures = page.locator("#figures dd").all_inner_texts()
        seconds = (STEPS[-1]["at_ms"] - STEPS[0]["at_ms"]) / 1000
        assert figures[0] == f"{(TOKENS - 1) / (len(STEPS) - 1):.2f}"
        assert figures[1] == f"{(TOKENS - 1) * PLAIN_MS / 1000 / seconds:.2f}×"
        assert figures[2] == f"{(TOKENS - 1) / seconds:.0f}"
        assert figures[4] == str(len(STEPS))
        assert page.locator("#model").inner_text() == "toy-model"
        assert "seed 7" in page.locator("#settings").inner_text()
        page.click("summary")
        assert "ab" * 32 in page.locator("#facts").inner_text()


def test_what_is_under_the_cursor(view: Any, trace: Path) -> None:
    index = next(i for i, record in enumerate(STEPS) if len(record["path"]) == 2)
    first = sum(len(record["tokens"]) for record in STEPS[:index])
    with view(trace) as page:
        page.wait_for_selector(".token.here")
        page.locator(f".token[data-i='{first}']").hover()
        said = page.locator("#token").inner_text()
        assert f"token {first + 1} of {TOKENS} · step {index + 1}" in said
        assert f"guessed by {SOURCES[index % 3]}, confirmed" in said
        values = page.locator("#token .value").all_inner_texts()
        assert values[:4] == ["88%", "75%", "88%", "6.3%"], "p, what the drafter claimed, alternatives"
        assert page.locator("#tree .node.kept").count() == 2
        assert page.locator("#tree .node.lost").count() == len(STEPS[index]["draft"]["tokens"]) - 2
        assert page.locator("#tree .node.own").count() == 1
        assert f"Step {index + 1}, done" in page.locator("#moment").inner_text()
        page.locator(f".token[data-i='{first + 2}']").click()
        assert "guesses kept before it: 2" in page.locator("#token").inner_text()
        page.mouse.move(5, 5)
        assert "guesses kept before it: 2" in page.locator("#token").inner_text(), "what was clicked stays"
        assert page.locator(".token.same-step").count() == 2


def test_the_keyboard_is_enough(view: Any, trace: Path) -> None:
    with view(trace) as page:
        page.wait_for_selector(".token.here")
        page.focus("#text")
        here = "Number(document.querySelector('.token.here').dataset.i)"
        press(page, "Home")
        assert page.evaluate(here) == 0
        press(page, "ArrowRight", "ArrowRight", "ArrowLeft")
        assert page.evaluate(here) == 1
        press(page, "ArrowDown")
        assert page.evaluate(here) == len(STEPS[0]["tokens"]) + len(STEPS[1]["tokens"])
        press(page, "ArrowUp", "ArrowUp", "End")
        assert page.evaluate(here) == TOKENS - 1
        assert f"token {TOKENS} of {TOKENS}" in page.locator("#said").inner_text()
        press(page, " ")
        assert page.get_attribute("#play", "aria-label") == "Pause"
        press(page, " ")
        assert page.get_attribute("#play", "aria-label") == "Play"
        reached = set()
        page.evaluate("document.activeElement.blur()")
        for _ in range(26):
            press(page, "Tab")
            reached.add(page.evaluate("document.activeElement.id"))
            assert page.evaluate("document.activeElement.matches('body, :focus-visible')")
        assert {"open", "other", "marks", "theme", "lang", "play", "scrub", "speed", "text", "tree", "lane"} <= reached
        for button in page.get_by_role("button").all():
            assert (button.get_attribute("aria-label") or button.inner_text()).strip()


def test_playback_at_recorded_times_beside_plain_decoding(view: Any, trace: Path) -> None:
    with view(trace) as page:
        page.wait_for_selector(".token.here")
        begun = STEPS[0]["at_ms"]
        lasts = max(STEPS[-1]["at_ms"] - begun, (TOKENS - 1) * PLAIN_MS)
        for ms in (0.0, 1000.5, 2222.2):
            page.evaluate(
                "v => { const s = document.getElementById('scrub'); s.value = v; s.dispatchEvent(new Event('input')) }",
                1000 * ms / lasts,
            )
            drafted = sum(len(record["tokens"]) for record in STEPS if record["at_ms"] - begun <= ms)
            counts = [page.locator(f"#{name} h3 small").inner_text().split()[0] for name in ("drafted", "plain")]
            assert counts == [str(drafted), str(1 + int(ms / PLAIN_MS))]
            assert page.locator("#plain .paper").evaluate("e => e.textContent") == text_of(1 + int(ms / PLAIN_MS))
        page.select_option("#speed", "16")
        page.click("#play")
        page.wait_for_selector("#plain.done")
        page.wait_for_selector("#race:not(.playing)")
        for name in ("drafted", "plain"):
            assert page.locator(f"#{name} .paper").evaluate("e => e.textContent") == text_of(TOKENS)
        ratio = (TOKENS - 1) * PLAIN_MS / (STEPS[-1]["at_ms"] - begun)
        assert page.locator("#verdict b").inner_text() == f"{ratio:.2f}×"


def test_playback_begins_by_itself_unless_less_motion_is_wanted(view: Any, trace: Path, tmp_path: Path) -> None:
    minutes = write(tmp_path / "minutes.jsonl", records(5000))  # a busy machine must not miss it
    with view(minutes, reduced_motion="no-preference") as page:
        page.wait_for_selector("#race.playing")
        page.select_option("#speed", "0.1")
        page.wait_for_selector("#drafted .ghost")
        page.click("#play")
        assert page.locator("#race.playing").count() == 0
    with view(trace) as page:
        page.wait_for_selector("#drafted.done")
        assert page.locator("#race.playing").count() == 0


def test_two_traces_of_one_text(view: Any, trace: Path, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.jsonl", records(TOKENS, drafter="none"))
    with view(trace) as page:
        page.wait_for_selector(".token.here")
        choose(page, plain, side=1)
        page.wait_for_selector(".compared.good")
        assert page.locator(".compared").inner_text() == f"Both texts are identical: {TOKENS} tokens."
        assert text(page, 0) == text(page, 1) == text_of(TOKENS)
        assert page.locator(".first-difference").count() == 0
        assert [e.inner_text() for e in page.locator(".pane h3 span").all()] == ["A · answer.jsonl", "B · plain.jsonl"]
        choose(page, plain)
        page.wait_for_selector("#heads", state="hidden")
        assert page.locator(".compared").count() == 0, "a new first file ends the comparison"


def test_the_first_difference_of_two_traces(view: Any, trace: Path, tmp_path: Path) -> None:
    at, found = 50, list(records(TOKENS))
    position = 0
    for record in found[2:-1]:
        if position <= at < position + len(record["tokens"]):
            record["tokens"][at - position] = 0 if word(at) != 0 else 1
        position += len(record["tokens"])
    other = write(tmp_path / "other.jsonl", found)
    with view(trace) as page:
        page.wait_for_selector(".token.here")
        choose(page, other, side=1)
        page.wait_for_selector(".compared.bad")
        assert f"They part at token {at + 1}" in page.locator(".compared").inner_text()
        marks = page.locator(".first-difference").all()
        assert [int(mark.get_attribute("data-i")) for mark in marks] == [at, at]
        tops = {round(mark.bounding_box()["y"]) for mark in marks}
        assert len(tops) == 1, "both sides are level at the difference"
        box, place = marks[0].bounding_box(), page.locator("#text").bounding_box()
        assert place["y"] <= box["y"] <= place["y"] + place["height"], "and it is in view"


def test_the_lane_zooms_pans_and_chooses(view: Any, trace: Path) -> None:
    with view(trace, viewport={"width": 1200, "height": 1600}) as page:
        page.wait_for_selector(".token.here")
        moment = page.locator("#moment")
        box = page.locator("#lane").bounding_box()
        page.mouse.click(box["x"] + box["width"] - 30, box["y"] + 30)
        assert int(moment.inner_text().split()[1].rstrip(",")) > len(STEPS) - 5
        late = moment.inner_text()
        press(page, "0", "Home")
        page.mouse.move(box["x"] + 300, box["y"] + 30)
        whole = moment.inner_text()
        for _ in range(4):
            page.click("#in")
        page.mouse.move(box["x"] + 300, box["y"] + 30)
        zoomed = moment.inner_text()
        page.mouse.move(box["x"] + 1000, box["y"] + 30)
        page.mouse.down()
        page.mouse.move(box["x"] + 100, box["y"] + 30, steps=4)
        page.mouse.up()
        page.mouse.move(box["x"] + 300, box["y"] + 31)
        assert len({late, whole, zoomed, moment.inner_text()}) == 4
        page.click("#fit")
        page.mouse.move(box["x"] + 300, box["y"] + 30)
        assert moment.inner_text() == whole


def test_language_and_theme_follow_the_system_and_the_switches(view: Any, trace: Path) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    with view(trace, locale="ko-KR", color_scheme="dark") as page:
        page.wait_for_selector(".token.here")
        assert page.locator("#time h3").inner_text() == "시간을 어디에 썼나"
        assert page.locator("#drafted h3 span").inner_text() == "미리 짐작하며 쓰기"
        dark = page.evaluate(back)
        page.click("#lang")
        page.click("#theme")
        page.reload()
        page.wait_for_selector(".token.here")
        assert page.locator("#time h3").inner_text() == "Where the time went"
        assert page.evaluate("document.documentElement.lang") == "en"
        assert page.evaluate(back) != dark


@pytest.mark.parametrize("width", [320, 768, 1600])
def test_nothing_sticks_out(view: Any, tmp_path: Path, width: int) -> None:
    path = write(tmp_path / f"{'long' * 20}.jsonl", records(300, model="m" * 200, drafter="d" * 200))
    with view(path, viewport={"width": width, "height": 800}) as page:
        page.wait_for_selector(".token.here")
        choose(page, path, side=1)
        page.wait_for_selector(".compared")
        page.click("summary")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert page.evaluate(
            "document.getElementById('text').scrollWidth <= document.getElementById('text').clientWidth"
        )


def test_before_there_is_a_trace(view: Any, trace: Path) -> None:
    with view() as page:
        assert page.locator("#welcome h2").is_visible()
        choose(page, trace)
        page.wait_for_selector(".token.here")
        assert not page.locator("#welcome").is_visible()
        assert page.title() == "answer.jsonl · sooner"


def test_the_page_of_the_server_works_under_its_policy(browser: Any, trace: Path) -> None:
    app = FastAPI()
    app.router.routes.extend(routes())
    reply = TestClient(app).get("/viewer")
    context = browser.new_context(locale="en-GB", reduced_motion="reduce")
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda message: failures.append(message.text))
    page.route(
        "http://viewer.test/**",
        lambda route: route.fulfill(status=200, body=reply.text, headers=dict(reply.headers)),
    )
    page.set_default_timeout(120_000)
    page.goto("http://viewer.test/viewer")
    choose(page, trace)
    page.wait_for_selector(".token.here")
    assert text(page) == text_of(TOKENS)
    assert failures == []
    context.close()


def test_several_texts_in_one_file(view: Any, tmp_path: Path) -> None:
    found = list(records(30))
    more = [{**record, "choice": 1} if record["type"] == "step" else record for record in list(records(60))[1:]]
    path = write(tmp_path / "two.jsonl", [*found[:-1], *more, header(seed=8), *list(records(10))[1:]])
    with view(path) as page:
        page.wait_for_selector(".token.here")
        assert page.locator("#runs option").count() == 3
        for i, tokens in enumerate((30, 60, 10)):
            page.select_option("#runs", str(i))
            assert text(page) == text_of(tokens)
        assert "seed 8" in page.locator("#settings").inner_text()
