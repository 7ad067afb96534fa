"""The viewer in the browser of its tests, opened from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def view(browser: Any, tmp_path: Path) -> Callable[..., Any]:
    """Open the viewer with a trace or without; scripts must not fail, and nothing may be loaded."""
    from sooner.trace.viewer import page as make

    @contextmanager
    def view(trace: Path | None = None, **options: Any) -> Iterator[Any]:
        place = tmp_path / "viewer.html"
        place.write_text(make(trace), encoding="utf-8")
        context = browser.new_context(**{"locale": "en-GB", "reduced_motion": "reduce", **options})
        page = context.new_page()
        failures: list[str] = []
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("console", lambda message: failures.append(message.text) if message.type == "error" else None)
        page.on("request", lambda r: None if r.url.startswith(("data:", place.as_uri())) else failures.append(r.url))
        page.set_default_timeout(60_000)
        page.goto(place.as_uri())
        yield page
        assert failures == []
        context.close()

    return view
