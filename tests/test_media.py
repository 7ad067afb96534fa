"""Where a caller says that a file lies: what is no location is refused in a line, and nothing of it stays in memory."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sooner.errors import InvalidRequest
from sooner.media import read_media
from sooner.pictures import read_local, read_served

HARD = ("file:///%00", "file://[x", "data://[x", "http://[x", "file:", "data:", "http:", "[x", "\0", "a:\0")


@pytest.mark.parametrize("where", HARD)
def test_what_is_no_location_is_refused_in_a_line(where: str, tmp_path: Path) -> None:
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: read_media(where, "messages", "sound"),
        lambda: read_local(where, "messages"),
        lambda: read_served(where, "messages"),
        lambda: read_served(where, "messages", tmp_path),
    )
    for read in ways:
        with pytest.raises(InvalidRequest) as refused:
            read()
        assert "\n" not in str(refused.value)


def test_a_data_url_is_remembered_nowhere() -> None:
    url = f"data:image/png;base64,{base64.b64encode(bytes(1000)).decode()}"
    before = urlsplit.cache_info()  # type: ignore[attr-defined]  # of functools
    assert read_media(url, "messages", "sound") == read_served(url, "messages") == bytes(1000)
    assert urlsplit.cache_info() == before  # type: ignore[attr-defined]


def test_a_scheme_may_be_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(b"picture")
    url = (tmp_path / "a b.png").as_uri().replace("file", "FILE")
    assert read_media(url, "messages", "picture") == b"picture"
    assert read_served(url, "messages", tmp_path) == b"picture"
