"""Fixtures shared by all tests: the default model, fetched once into the user's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sooner.store import ModelFiles


@pytest.fixture(scope="session")
def default_files() -> ModelFiles:
    """The default model's files, imported on first use."""
    from sooner.store import resolve

    return resolve()
