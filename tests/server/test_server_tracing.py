"""Traces of a server: one per request, without prompts unless asked, bounded, and never in the way of an answer."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from serving import MESSAGES, client, raw, serving, toy_engine

from commandline import Toy, invoke
from sooner.errors import InvalidRequest
from sooner.server import Settings
from sooner.trace import Trace
from sooner.trace.folder import TraceFolder
from sooner.trace.proof import prove


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


async def ask(settings: Settings, times: int = 1, **options: Any) -> list[Any]:
    async with serving(settings=settings) as (app, _), client(app) as openai:
        asked = {"model": "toy", "messages": MESSAGES, "max_tokens": 20, "seed": 3, "temperature": 0.8, **options}
        return [await openai.chat.completions.create(**asked) for _ in range(times)]


def traces(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


@pytest.mark.parametrize("prompts", [False, True])
def test_a_trace_per_request_without_prompt_unless_asked(tmp_path: Path, prompts: bool) -> None:
    settings = Settings(traces=TraceFolder(tmp_path / "t"), log_prompts=prompts)
    answer, _ = run(ask(settings, 2, n=2, stop=["zz"], logit_bias={"3": 1}))
    first, second = traces(tmp_path / "t")
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o700
    assert first.stat().st_mode & 0o777 == 0o600
    with Trace(first) as trace:
        steps = list(trace)
        header, footer = trace.header, trace.footer
    assert header["id"] == answer.id
    assert footer is not None
    texts = ["".join(step["text"] for step in steps if step["choice"] == i) for i in range(2)]
    assert texts == [choice.message.content for choice in answer.choices]
    assert footer["choices"][0]["usage"]["prompt_tokens"] == header["prompt_tokens"] == 3
    assert all(len(step["p"]) == len(step["tokens"]) for step in steps)
    withheld = [header["prompt"], header["salt"], header["expected"], header["sampling"]["stop"]]
    if prompts:
        assert withheld == [[1, 2, 3], "", [], ["zz"]]
        assert prove(toy_engine(drafter=None), header, steps).mismatch is None
    else:
        assert withheld == [None] * 4
        assert header["sampling"]["logit_bias"] is None
        with pytest.raises(InvalidRequest, match="serve with --log-prompts"):
            prove(toy_engine(drafter=None), header, steps)
    assert json.loads(second.read_text().splitlines()[0])["seed"] == 3


def test_the_oldest_make_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sooner.server")
    (tmp_path / "mine.jsonl").write_text("mine")
    settings = Settings(traces=TraceFolder(tmp_path, most_files=3))
    run(ask(settings, 5))
    kept = [path for path in traces(tmp_path) if path.name != "mine.jsonl"]
    assert len(kept) == 3
    assert (tmp_path / "mine.jsonl").read_text() == "mine"
    assert "1 older traces made room" in caplog.text
    assert f"traces go to {tmp_path}, without prompts (--log-prompts)" in caplog.text
    size = kept[-1].stat().st_size
    run(ask(Settings(traces=TraceFolder(tmp_path, most_bytes=int(2.5 * size))), 1))
    left = [path for path in traces(tmp_path) if path.name != "mine.jsonl"]
    assert len(left) == 2
    assert left[0] == kept[-1]
    run(ask(Settings(traces=TraceFolder(tmp_path, most_bytes=1)), 1))
    assert len(traces(tmp_path)) == 2


def test_a_folder_that_goes_away_loses_traces_not_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = TraceFolder(tmp_path / "t")
    (tmp_path / "t").rmdir()
    (answer,) = run(ask(Settings(traces=folder)))
    assert answer.choices[0].message.content
    assert "a trace is lost" in caplog.text


def test_a_full_disk_in_mid_trace_leaves_no_half_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sooner.trace import TraceFile

    write = TraceFile.write

    def full(self: TraceFile, record: dict[str, Any]) -> None:
        if record["type"] == "step" and record["index"] == 2:
            raise InvalidRequest("the trace cannot be written (No space left on device)", "trace")
        write(self, record)

    monkeypatch.setattr(TraceFile, "write", full)
    (answer,) = run(ask(Settings(traces=TraceFolder(tmp_path)), n=2))
    assert answer.choices[1].message.content
    assert traces(tmp_path) == []
    assert "No space left" in caplog.text


def test_an_abandoned_answer_has_a_whole_trace(tmp_path: Path) -> None:
    async def leave() -> None:
        async with serving(settings=Settings(traces=TraceFolder(tmp_path))) as (app, service), raw(app) as http:
            body = {"model": "toy", "messages": MESSAGES, "max_tokens": 400, "ignore_eos": True, "timeout": 0.2}
            await http.post("/v1/chat/completions", json=body)
            assert service.ready.driver.running == 0

    run(leave())
    (path,) = traces(tmp_path)
    with Trace(path) as trace:
        assert list(trace)
        assert trace.footer is not None


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(InvalidRequest, match=r"no traces can be kept in .* give another --trace-dir"):
            TraceFolder(path)


def test_the_options_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = {
        ("--trace-keep", "3"): "add --trace-dir",
        ("--trace-mb", "3"): "add --trace-dir",
        ("--trace-dir", str(tmp_path / "file")): "give another --trace-dir",
    }
    for options, message in refused.items():
        toy = Toy()
        result = invoke("serve", "--port", "0", *options, load=toy)
        assert (result.code, toy.loads, len(result.err.splitlines())) == (2, 0, 1)
        assert message in result.err
