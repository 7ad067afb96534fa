"""Reading traces: whole, cut off, compressed, foreign and broken; what is wrong is one line that names the remedy."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from recording import Record, record, steps_of, write

from sooner.errors import InvalidRequest
from sooner.trace import Trace, TraceFile
from sooner.trace.check import check_step
from sooner.trace.stats import collect
from toy import PIECES, TreeDrafter, toy_engine

DOCS = Path(__file__).resolve().parents[2] / "docs" / "traces.md"


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return record(toy_engine(TreeDrafter(1)), [1, 2, 3], max_tokens=30, seed=3, temperature=0.9, logprobs=1)


def read(path: Path) -> tuple[list[Record], Record | None]:
    with Trace(path) as trace:
        steps = list(trace)
        return steps, trace.footer


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_what_is_written_is_read(tmp_path: Path, records: list[Record], name: str) -> None:
    with TraceFile(tmp_path / name) as file:
        for one in records:
            file.write(one)
    assert read(tmp_path / name) == (steps_of(records), records[-1])
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_every_token_has_its_piece_before_its_first_use(tmp_path: Path, records: list[Record]) -> None:
    with Trace(write(tmp_path / "t", records)) as trace:
        for step in trace:
            named = [*step["tokens"], *step["draft"]["tokens"]]
            named += [token for row in step["top"] for token, _ in row]
            named += [token for _, _, row in step["logprobs"] for token, _ in row]
            assert all(trace.pieces.token_bytes(token) == PIECES[token] for token in named)
            assert all(PIECES[token] or token == 0 for token in named)
    told = [id for one in records if one["type"] == "tokens" for id in one["pieces"]]
    assert len(told) == len(set(told))
    assert records[1]["type"] == "tokens"
    assert set(records[1]["pieces"]) == {"1", "2", "3"}
    bytes_of_characters = [piece for one in records if one["type"] == "tokens" for piece in one["pieces"].values()]
    assert any(isinstance(piece, list) for piece in bytes_of_characters)


def test_a_cut_trace_is_read_as_far_as_it_goes(tmp_path: Path, records: list[Record]) -> None:
    data = write(tmp_path / "t", records).read_bytes()
    steps = steps_of(records)
    first_step = data.index(b'{"type": "step"')
    for end in (*range(first_step + 5, len(data) - 1, 997), len(data) - 2):
        (tmp_path / "t").write_bytes(data[:end])
        found, footer = read(tmp_path / "t")
        assert footer is None
        assert found == steps[: len(found)]
    packed = gzip.compress(data)
    (tmp_path / "t").write_bytes(packed[: len(packed) // 2])
    found, footer = read(tmp_path / "t")
    assert (found, footer) == (steps[: len(found)], None)


def test_what_is_not_known_is_ignored(tmp_path: Path, records: list[Record]) -> None:
    more = [{**one, "new": [1]} for one in records]
    more.insert(2, {"type": "weather", "rain": True})
    found, footer = read(write(tmp_path / "t", more))
    assert [one["tokens"] for one in found] == [one["tokens"] for one in steps_of(records)]
    assert footer is not None


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path: Path, records: list[Record]) -> None:
    data = write(tmp_path / "t", records).read_bytes()
    (tmp_path / "t").write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n") + b"\n \n")
    assert read(tmp_path / "t") == (steps_of(records), records[-1])


BROKEN: dict[str, Any] = {
    "is empty: record a trace with sooner run --trace FILE": b"",
    "holds nothing that can be read": gzip.compress(b"")[:-9],
    "is no trace (its first line is no header)": b'{"prompt": "hello"}\n',
    "is no trace (its first line is no header):": b"\x00\xff\x13\x37" * 999,
    "is no trace": b"Once upon a time\n",
    "has no trace schema": b'{"type": "header"}\n',
    "has trace schema 2 and this version reads up to 1: upgrade": b'{"type": "header", "schema": 2}\n',
    "line 1, is longer than 16 MB": b"{" + b"x" * (17 << 20),
    "line 2, begins another trace": b'{"type": "header", "schema": 1}\n{"type": "header", "schema": 1}\n',
    "line 2, has no pieces": b'{"type": "header", "schema": 1}\n{"type": "tokens"}\n',
    "line 2, has no pieces ": b'{"type": "header", "schema": 1}\n{"type": "tokens", "pieces": {"a": 3}}\n',
    "line 2, is no step of trace schema 1 (see its draft)": b'{"type": "header", "schema": 1}\n{"type": "step"}\n',
    "line 2, is damaged, and others follow it": b'{"type": "header", "schema": 1}\n{"ty\n{"type": "footer"}\n',
    "line 3, is damaged": b'{"type": "header", "schema": 1}\n\nNaN\n{"type": "footer", "x": NaN}\n{}',
    "line 2, is damaged": b'{"type": "header", "schema": 1}\n' + b"[" * 99_999 + b'\n{"type": "footer"}\n',
}


@pytest.mark.parametrize("message", BROKEN)
def test_what_is_no_trace_is_refused_in_a_line(tmp_path: Path, message: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(BROKEN[message])
    with pytest.raises(InvalidRequest, match=re.escape(message)) as one:
        read(path)
    assert str(one.value).startswith(str(path))
    assert "\n" not in str(one.value)


def test_what_is_no_file_is_refused_in_a_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    wanted = {tmp_path: "is a folder", tmp_path / "none": "No such file", tmp_path / "pipe": "is no file: save"}
    for path, message in wanted.items():
        with pytest.raises(InvalidRequest, match=message):
            Trace(path)


def test_every_field_of_a_step_is_looked_at(records: list[Record]) -> None:
    step = steps_of(records)[1]
    assert check_step(step) == ""
    draft = {**step["draft"]}
    wrong: list[dict[str, Any]] = [
        {"draft": None},
        {"draft": {**draft, "tokens": ["a"] * len(draft["tokens"])}},
        {"draft": {**draft, "tokens": [*draft["tokens"], 1]}},
        {"draft": {**draft, "parents": [5] * len(draft["tokens"])}},
        {"draft": {**draft, "confidence": ["a"] * len(draft["tokens"])}},
        {"draft": {**draft, "p": []}},
        {"path": [99]},
        {"path": None},
        {"tokens": [True]},
        {"tokens": None},
        {"sources": [3] * len(step["tokens"])},
        {"p": []},
        {"top": [[[1]]] * len(step["tokens"])},
        {"top": [3] * len(step["tokens"])},
        {"choice": "0"},
        {"rows": None},
        {"score_ms": "1"},
        {"at_ms": None},
        {"finish": "stop"},
        {"text": None},
    ]
    assert len(draft["tokens"]) > 0
    for change in wrong:
        assert check_step({**step, **change}), change


def test_skipping_finds_the_footer(tmp_path: Path, records: list[Record]) -> None:
    for trace_records, footer in ((records, records[-1]), (records[:-1], None)):
        with Trace(write(tmp_path / "t", trace_records)) as trace:
            next(iter(trace))
            trace.skip()
            assert trace.footer == footer


def test_the_example_of_the_documentation_is_a_trace(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```json\n(.*?)^```$", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "t").write_text(example, encoding="utf-8")
    with Trace(tmp_path / "t") as trace:
        stats = collect(trace)
        assert trace.footer is not None
        assert trace.footer["plain_from"] == "curve"
        assert trace.pieces.token_name(2) == "<|im_end|>"
    assert (stats.tokens, stats.accepted) == (2, 1)


def test_the_documentation_names_every_field(records: list[Record]) -> None:
    text = DOCS.read_text("utf-8")
    named = set(re.findall(r"`([\w.]+)`", text))
    header, footer, step = records[0], records[-1], steps_of(records)[1]
    fields = {*header, *footer, *step, *(f"draft.{name}" for name in step["draft"])} - {"draft"}
    assert fields <= named, fields - named
    json.dumps(header, allow_nan=False)
