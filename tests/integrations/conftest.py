"""What Ray's workers, which are other processes, need in order to run what tests send them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def _workers_find_the_tests() -> Iterator[None]:
    """What is sent to a worker is sent by name, and looked for on its own path: a cluster started here inherits it."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield
