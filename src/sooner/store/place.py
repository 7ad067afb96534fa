"""Where an import lives in the cache. Light on purpose: this is all that a warm start goes through.

Knows what identifies an import. Does not know how one is made.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from sooner.store.cache import cache_dir
from sooner.store.manifest import ModelFiles, read_manifest

__all__ = ["engine_version", "import_place", "imported"]

_FORMAT = "1"
"""Raised when an import of the same file comes out differently than before."""


def engine_version() -> str:
    """The installed version of OpenVINO GenAI, whose reader made (or would make) the import."""
    spec = find_spec("openvino_genai")
    for folder in spec.submodule_search_locations or () if spec else ():
        # Its metadata folder names the version; importlib.metadata alone would take most of a warm start.
        for path in Path(folder).parent.glob("openvino_genai-*.dist-info"):
            return path.name.removeprefix("openvino_genai-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version("openvino-genai")


def import_place(sha256: str) -> Path:
    """The folder of the import of this content: another engine version may make another IR of it."""
    return cache_dir("models") / f"{sha256[:24]}-{engine_version()}-{_FORMAT}"


def imported(sha256: str) -> ModelFiles | None:
    """The finished import of this content by the installed engine, if it is there and whole."""
    return read_manifest(import_place(sha256))
