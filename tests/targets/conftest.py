"""The default model as a target, compiled once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sooner.store import ModelFiles
from sooner.targets.openvino import OpenVINOTarget, load


@pytest.fixture(scope="session")
def compiled(default_files: ModelFiles) -> OpenVINOTarget:
    return load(default_files, pool_tokens=4096)


@pytest.fixture
def target(compiled: OpenVINOTarget) -> Iterator[OpenVINOTarget]:
    """The target with an empty cache; every block must be free again afterwards."""
    compiled.pool.purge()
    yield compiled
    assert compiled.pool.held == 0
