"""Fixtures shared by all tests: the default model, fetched once into the user's cache, and the pages' browser."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sooner.store import ModelFiles


# A torchvision built for CUDA does not load beside a CPU build of torch, and takes all of transformers with it; without
# one transformers works.
sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]  # how Python spells "cannot be imported"


@pytest.fixture(scope="session")
def default_files() -> ModelFiles:
    """The default model's files, imported on first use."""
    from sooner.store import resolve

    return resolve()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by playwright (the extra `page`)."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path, "Chromium is missing: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
