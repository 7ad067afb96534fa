"""What Ray's workers, which are other processes, need in order to run what tests send them; and a small model of
transformers, plain and sped up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def _workers_find_the_tests() -> Iterator[None]:
    """What is sent to a worker is sent by name, and looked for on its own path: a cluster started here inherits it."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield


@pytest.fixture(scope="module")
def model() -> Any:
    from test_transformers import tiny

    return tiny()


@pytest.fixture
def fast(model: Any) -> Any:
    from sooner.integrations.transformers import speed_up

    return speed_up(model, budget=6)
