"""The chat page in the browser of its tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from page_server import Script, serving


@pytest.fixture
def visit(browser: Any) -> Callable[..., Any]:
    """Open the page of a scripted server; scripts must not fail, and nothing may be loaded from elsewhere."""

    @contextmanager
    def visit(script: Script, **options: Any) -> Iterator[Any]:
        with serving(script) as url:
            context = browser.new_context(**{"locale": "en-GB", **options})
            page = context.new_page()
            failures: list[str] = []
            page.on("pageerror", lambda error: failures.append(str(error)))
            page.on("request", lambda r: None if r.url.startswith(url) else failures.append(r.url))
            page.set_default_timeout(20_000)
            page.goto(url)
            yield page
            assert failures == []
            context.close()

    return visit
