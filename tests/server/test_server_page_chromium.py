"""The page in a real browser: streaming, marks, figures, stopping, keys, failures, languages, keyboard, long texts."""

from __future__ import annotations

import random
from typing import Any

import httpx2
import pytest
from page_server import DRAFTED_MS, PLAIN_MS, Script, serving, steps_of
from test_server_socket import listening

pytestmark = pytest.mark.page

MARKDOWN = """Light is a mix of **all colours**:

1. Blue has *short waves*.
2. Red has long waves,
   and passes.

- one
- two
  - inner `code`

```python
def f(x):
    return x ** 4
```

| a | b |
|---|---|
| 1 | 2 |

> quoted [link](https://example.org/x) and https://example.org.

### End
2 * 3 * 4, snake_case_name, **open and `open
"""

HOSTILE = """<img src=x onerror="document.title='bad'"> <script>document.title='bad'</script>
[click](javascript:document.title='bad') **<b>bold</b>** `<i>` [ok](https://example.org/?a=1&b=2)"""


def ask(page: Any, text: str = "Why is the sky blue?", *, wait: bool = True) -> None:
    page.fill("#prompt", text)
    page.keyboard.press("Enter")
    if wait:
        page.wait_for_selector(".answer:last-child:not([aria-busy]) .figures")


def figures(page: Any) -> list[str]:
    return [page.locator(f"#m-{name}").inner_text() for name in ("pass", "speed", "saved")]


def test_an_answer_its_marks_and_its_figures(visit: Any) -> None:
    script = Script()
    with visit(script) as page:
        ask(page)
        assert page.locator(".prose").inner_text() == script.text
        steps = steps_of(script.text)
        runs = ["".join(piece for piece, source in step if source != "target").strip() for step in steps]
        assert page.locator(".prose .drafted").all_inner_texts() == [run for run in runs if run]
        tokens, passes = sum(map(len, steps)), len(steps)
        speed = 1000 * (tokens - 1) / ((passes - 1) * DRAFTED_MS)
        saved = 100 * (1 - passes / tokens)
        assert figures(page) == [f"{(tokens - 1) / (passes - 1):.2f}", f"{speed:.0f}", f"{saved:.0f}%"]
        kept = {source for step in steps for _, source in step} - {"target"}
        assert {text.split()[-1] for text in page.locator(".legend .drafted").all_inner_texts()} == kept
        (request,) = script.requests
        assert request["messages"] == [{"role": "user", "content": "Why is the sky blue?"}]
        assert request["sooner_pieces"] is request["stream"] is True
        assert request["stream_options"] == {"include_usage": True}
        assert (request["temperature"], request["max_tokens"]) == (0, 1024)
        assert not {"draft", "top_p", "seed"} & set(request), "what says nothing is left out"


def test_marks_can_be_switched_off_and_stay_off(visit: Any) -> None:
    with visit(Script()) as page:
        ask(page)
        line = "getComputedStyle(document.querySelector('.prose .drafted')).textDecorationLine"
        assert page.evaluate(line) == "underline"
        page.click("#marks")
        assert page.evaluate(line) == "none"
        page.reload()
        assert page.evaluate(line) == "none", "the conversation and the choice outlive a reload"
        assert page.get_attribute("#marks", "aria-pressed") == "false"


def test_a_hostile_text_stays_text(visit: Any) -> None:
    with visit(Script(text=HOSTILE)) as page:
        ask(page, HOSTILE.splitlines()[0])
        assert page.locator("#log :is(img, script, i, b)").count() == 0
        assert page.title() == "sooner"
        assert page.locator(".prose a").get_attribute("href") == "https://example.org/?a=1&b=2"
        assert page.locator(".prose a").get_attribute("rel") == "noopener noreferrer"
        assert "<img src=x" in page.locator(".prose").inner_text()


DRAW = """async ([text, cuts]) => {
  const [{ Prose }, { Answer }] = await Promise.all([import("./static/view.js"), import("./static/answer.js")]);
  const drawn = (cuts) => {
    const answer = new Answer({});
    const place = document.createElement("div");
    const prose = new Prose(place, answer);
    let from = 0;
    for (const cut of [...cuts, text.length]) {
      answer.text = text.slice(0, cut);
      answer.step([[text.slice(from, cut - 1), "suffix"], [text.slice(Math.max(from, cut - 1), cut), "target"]], 0);
      from = cut;
      prose.update(true);
    }
    prose.update(false);
    for (const mark of place.querySelectorAll(".drafted")) mark.replaceWith(...mark.childNodes);
    place.normalize();
    return place.innerHTML;
  };
  return [drawn(cuts), drawn([])];
}"""


def test_a_text_looks_the_same_however_it_arrived(visit: Any) -> None:
    with visit(Script(), bypass_csp=True) as page:
        chance = random.Random(1)
        for text in (MARKDOWN, HOSTILE, "1. a\n\n2. b\n\n- c\n\ntext\n\n\n    x\n* * *\n**b\n\n_c d_ ~~e~~ `f"):
            every = list(range(1, len(text)))
            for cuts in (every, *(sorted(chance.sample(every, len(text) // 7)) for _ in range(8))):
                grown, whole = page.evaluate(DRAW, [text, cuts])
                assert grown == whole
        whole = page.evaluate(DRAW, [MARKDOWN, []])[0]
        for tag in ("strong", "em", "ol", "ul", "pre", "table", "blockquote", "h5", "a", "code"):
            assert f"<{tag}" in whole, tag
        assert "2 * 3 * 4, snake_case_name, **open and `open" in whole


def test_only_the_end_of_a_long_answer_is_drawn_anew(visit: Any) -> None:
    with visit(Script(), bypass_csp=True) as page:
        kept, drawn = page.evaluate(
            """async () => {
              const [{ Prose }, { Answer }] = await Promise.all(
                [import("./static/view.js"), import("./static/answer.js")]);
              const answer = new Answer({});
              const place = document.createElement("div");
              const prose = new Prose(place, answer);
              let drawn = 0;
              new MutationObserver((all) => (drawn += all.length)).observe(place, { childList: true });
              for (let i = 0; i < 400; i += 1) {
                answer.text += `Paragraph ${i}.\\n\\n`;
                prose.update(true);
                if (i === 5) place.firstChild.id = "first";
              }
              await Promise.resolve();
              return [place.firstChild.id, drawn];
            }"""
        )
        assert kept == "first"
        assert drawn < 400 * 6


@pytest.mark.parametrize("how", ["click", "key"])
def test_stopping_keeps_what_arrived_and_tells_the_server(visit: Any, how: str) -> None:
    script = Script(text="word " * 3000, pause=0.03)
    with visit(script) as page:
        ask(page, wait=False)
        page.wait_for_selector(".prose p")
        assert page.get_attribute("#send", "aria-label") == "Stop"
        page.click("#send") if how == "click" else page.keyboard.press("Escape")
        page.wait_for_selector(".answer:not([aria-busy]) .figures")
        assert script.cancelled.wait(5)
        assert "Stopped" in page.locator(".figures").inner_text()
        assert 0 < page.locator(".prose").inner_text().count("word") < 3000
        ask(page, "And now?", wait=False)
        page.wait_for_selector(".answer:nth-of-type(4) .prose p")
        assert [m["role"] for m in script.requests[-1]["messages"]] == ["user", "assistant", "user"]


def test_a_key_is_asked_for_and_kept_in_the_tab_only(visit: Any) -> None:
    script = Script(key="secret")
    with visit(script) as page:
        ask(page, wait=False)
        page.wait_for_selector("text=This server asks for an API key.")
        assert page.evaluate("document.activeElement.name") == "key"
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=did not accept this API key")
        page.keyboard.type("secret")
        page.keyboard.press("Enter")
        page.wait_for_selector(".answer:not([aria-busy]) .figures")
        assert page.locator(".failure").count() == 0
        assert page.locator("#model").inner_text() == "SmolLM2-135M-Instruct"
        assert "secret" not in page.evaluate("JSON.stringify({ ...localStorage })")
        assert "secret" in page.evaluate("JSON.stringify({ ...sessionStorage })")


REFUSALS: list[tuple[tuple[int, dict[str, Any]], str]] = [
    ((429, {"message": "the queue is full"}), "The server is busy. It takes no more questions for the moment"),
    ((400, {"message": "the prompt is too long", "code": "context_length_exceeded"}), "has become too long"),
    ((400, {"message": "top_k must be at most 5", "param": "top_k"}), "top_k must be at most 5"),
    ((500, {"message": "the device is lost"}), "The server failed."),
    ((503, {"message": "bye", "code": "shutting_down"}), "The server is shutting down."),
    ((504, {"message": "slow", "code": "deadline_exceeded"}), "The answer took too long."),
]


@pytest.mark.parametrize(("refuse", "words"), REFUSALS, ids=[str(refusal[0]) for refusal, _ in REFUSALS])
def test_refusals_are_said_in_words_and_can_be_tried_again(
    visit: Any, refuse: tuple[int, dict[str, Any]], words: str
) -> None:
    script = Script(refuse=refuse)
    with visit(script) as page:
        ask(page, wait=False)
        page.wait_for_selector(f".failure:has-text('{words}')")
        assert page.get_attribute(".failure", "role") == "alert"
        script.refuse = None
        page.click(".failure button")
        page.wait_for_selector(".answer:not([aria-busy]) .figures")
        assert script.requests[0]["messages"] == script.requests[1]["messages"]
        assert page.locator(".failure").count() == 0


@pytest.mark.parametrize("how", ["error_after", "break_after"])
def test_what_arrived_before_a_failure_is_kept(visit: Any, how: str) -> None:
    script = Script()
    setattr(script, how, 3)
    with visit(script) as page:
        ask(page, wait=False)
        words = "The server failed." if how == "error_after" else "The connection broke off."
        page.wait_for_selector(f".failure:has-text('{words}')")
        assert script.text.startswith(page.locator(".prose").inner_text())
        setattr(script, how, None)
        page.click(".failure button")
        page.wait_for_selector(f".prose:has-text('{script.text}')")
        assert page.locator(".answer").count() == 1


def test_the_page_waits_for_a_model_that_loads(visit: Any) -> None:
    script = Script(loading=True)
    with visit(script) as page:
        ask(page, wait=False)
        page.wait_for_selector("text=The page goes on by itself")
        script.loading = False
        page.wait_for_selector(".answer:not([aria-busy]) .figures")
        page.wait_for_selector("#model:has-text('SmolLM2')")


def test_a_server_that_is_gone(browser: Any) -> None:
    with serving(Script()) as url:
        page = browser.new_context(locale="ko-KR").new_page()
        page.goto(url)
    ask(page, "안녕하세요", wait=False)
    page.wait_for_selector(".failure:has-text('서버가 응답하지 않습니다.')")
    page.fill("#prompt", "다시")
    page.keyboard.press("Enter")
    page.wait_for_selector(".failure")
    assert page.locator(".question").all_inner_texts()[-1].endswith("다시")
    assert page.locator(".question").count() == 1, "a question without an answer makes room for the next"
    page.context.close()


def test_the_check_against_plain_decoding(visit: Any) -> None:
    script = Script()
    with visit(script) as page:
        ask(page)
        page.click("[data-deed=check]")
        verdict = page.wait_for_selector(".verdict.good").inner_text()
        drafted, plain = script.requests
        assert plain == {**drafted, "draft": "none"}
        steps = steps_of(script.text)
        ratio = (sum(map(len, steps)) - 1) * PLAIN_MS / ((len(steps) - 1) * DRAFTED_MS)
        assert verdict.startswith(f"Same text, {ratio:.2f}×")


def test_the_check_can_fail(visit: Any) -> None:
    script = Script()
    with visit(script) as page:
        ask(page)
        script.text = script.text.replace("air", "sea")
        page.click("[data-deed=check]")
        assert page.wait_for_selector(".verdict.bad").inner_text().startswith("The texts differ after 28 characters,")


def test_sampling_is_sent_kept_and_reset(visit: Any) -> None:
    script = Script()
    with visit(script) as page:
        page.click("#open")
        assert page.evaluate("document.querySelector('#settings').contains(document.activeElement)")
        page.fill("[name=temperature]", "0.7")
        page.fill("[name=system]", "Be brief.")
        page.uncheck("[name=draft]")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.id") == "open"
        page.reload()
        ask(page)
        sent = script.requests[-1]
        assert (sent["temperature"], sent["draft"]) == (0.7, "none")
        assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
        assert isinstance(sent["seed"], int)
        assert f"seed {sent['seed']}" in page.locator(".figures").inner_text()
        page.click("#open")
        page.fill("[name=top_p]", "7")
        page.fill("#prompt", "Again?")
        page.press("#prompt", "Enter")
        assert len(script.requests) == 1, "a setting out of bounds is not sent"
        page.click("#reset")
        ask(page)
        assert script.requests[-1]["temperature"] == 0
        assert "draft" not in script.requests[-1]


def test_language_and_theme_follow_the_system_and_the_switches(visit: Any) -> None:
    with visit(Script(), locale="ko-KR", color_scheme="dark") as page:
        back = "getComputedStyle(document.body).backgroundColor"
        assert page.locator("h2").first.inner_text() == "같은 글을, 더 빨리."
        dark = page.evaluate(back)
        page.click("#lang")
        page.click("#theme")
        page.reload()
        assert page.locator("h2").first.inner_text() == "The same text, sooner."
        assert page.evaluate("document.documentElement.lang") == "en"
        assert page.evaluate(back) != dark


def test_the_keyboard_is_enough(visit: Any) -> None:
    script = Script()
    with visit(script) as page:
        page.fill("#prompt", "안녕")
        page.evaluate(
            "document.querySelector('#prompt').dispatchEvent("
            "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true}))"
        )
        assert script.requests == [], "Enter ends the syllable"
        page.press("#prompt", "Shift+Enter")
        page.keyboard.type("again")
        page.keyboard.press("Enter")
        page.wait_for_selector(".answer:not([aria-busy]) .figures")
        assert script.requests[0]["messages"][0]["content"] == "안녕\nagain"
        reached = set()
        page.evaluate("document.activeElement.blur()")
        for _ in range(30):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.dataset.deed || ''"))
        assert {"new", "marks", "open", "theme", "lang", "copy", "again", "check", "prompt", "send"} <= reached


def test_every_button_has_a_name_and_the_answer_is_announced(visit: Any) -> None:
    script = Script()
    with visit(script) as page:
        ask(page)
        page.click("#open")
        for button in page.get_by_role("button").all():
            assert (button.get_attribute("aria-label") or button.inner_text()).strip()
        for field in page.locator("input, textarea, select").all():
            assert field.evaluate("e => e.labels?.length > 0 || e.hasAttribute('aria-label')")
        assert page.locator("#said").inner_text().strip().endswith(script.text)
        assert page.get_attribute("#log", "aria-live") == "off"


@pytest.mark.parametrize("width", [320, 768, 1600])
def test_nothing_sticks_out(visit: Any, width: int) -> None:
    with visit(Script(text=MARKDOWN + "x" * 400), viewport={"width": width, "height": 700}) as page:
        ask(page, "y" * 300)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert page.evaluate("document.querySelector('#scroll').scrollWidth") <= width
        page.click("#open")
        assert page.evaluate("document.querySelector('#settings').getBoundingClientRect().right") <= width


def test_the_page_and_the_real_server_understand_one_another(browser: Any) -> None:
    with listening() as (address, _):
        page = browser.new_context(locale="en-GB").new_page()
        page.goto(address)
        page.click("#open")
        for name, value in (("max_tokens", "40"), ("temperature", "0.8"), ("seed", "7")):
            page.fill(f"[name={name}]", value)
        page.keyboard.press("Escape")
        ask(page, "abc")
        body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 40, "temperature": 0.8, "seed": 7}
        answer = httpx2.post(f"{address}/v1/chat/completions", json=body).json()
        assert page.locator("#model").inner_text() == answer["model"]
        assert f"{answer['usage']['completion_tokens']} tokens in" in page.locator(".figures").inner_text()
        assert float(page.locator("#m-pass").inner_text()) > 1
        assert page.locator(".prose .drafted").count() > 0
        page.click("[data-deed=check]")
        page.wait_for_selector(".verdict.good:has-text('Same text')")
        page.context.close()


def test_ideas_and_a_new_conversation(visit: Any) -> None:
    script = Script()
    with visit(script) as page:
        page.click(".idea >> nth=0")
        page.wait_for_selector(".answer:not([aria-busy]) .figures")
        assert page.locator("#welcome").is_hidden()
        page.click("#new")
        assert page.locator(".turn").count() == 0
        assert page.locator("#welcome").is_visible()
        ask(page, "Second")
        assert [m["content"] for m in script.requests[-1]["messages"]] == ["Second"]
