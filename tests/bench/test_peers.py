"""The comparison with peers: workers that answer, refuse and die; tables from known runs; pieces that add up."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compare
import peers_link
import peers_table
import pytest
from peers_catalogue import OWN, PEERS
from peers_link import Worker, WorkerFailed
from peers_result import Result

from sooner.bench.workload import Item

WORKERS = Path(peers_link.__file__).with_name("workers")

SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, sys.argv.pop(2))
from worker_pipe import serve

beats = [0]

def beat():
    while True:
        beats[0] += 1
        time.sleep(0.005)

threading.Thread(target=beat, daemon=True).start()

def load(variant, settings):
    print("a library says hello")
    if variant == "broken":
        raise ValueError("it cannot\\nbe loaded")
    def generate(prompt, most, clock):
        if variant == "rude":
            raise RuntimeError("not this one")
        if variant == "mortal":
            print("last words", file=sys.stderr)
            os._exit(3)
        if variant == "slow":
            time.sleep(30)
        for n in range(1, most + 1):
            clock.tick(n)
        return {"ids": prompt[:most], "beats": beats[0]}
    return generate

serve(load, ["numpy", "nosuch"])
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT.replace("sys.argv.pop(2)", repr(str(WORKERS))))
    workers: list[Worker] = []

    def started(*variants: str) -> Worker:
        settings = {"variants": list(variants)}
        workers.append(Worker(Path(sys.executable), script, settings, tmp_path / "log", {}))
        return workers[-1]

    yield started
    for worker in workers:
        worker.close()


def test_a_worker_answers_and_rests(start: Any) -> None:
    worker = start("plain", "broken", "rude")
    assert list(worker.ready) == ["plain", "rude"]
    assert worker.failed == {"broken": "ValueError: it cannot"}
    assert worker.versions["nosuch"] == "missing"
    answer = worker.ask("plain", [5, 6, 7], 3)
    assert answer["ids"] == [5, 6, 7]
    assert [n for n, _ in answer["ticks"]] == [1, 2, 3]
    time.sleep(0.3)
    assert worker.ask("plain", [1], 1)["beats"] - answer["beats"] < 20, "it was stopped meanwhile"
    with pytest.raises(WorkerFailed, match="not this one"):
        worker.ask("rude", [1], 1)
    assert worker.ask("plain", [1], 1)["ids"] == [1], "one refusal is not the end"


def test_death_and_silence_are_told(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = start("mortal")
    with pytest.raises(WorkerFailed, match="exit code 3: last words"):
        worker.ask("mortal", [1], 1)
    monkeypatch.setattr(peers_link, "_ANSWER_S", 0.3)
    with pytest.raises(WorkerFailed, match="no answer within 0 s"):
        start("slow").ask("slow", [1], 1)


def run(peer: str, variant: str, item: str, seconds: float, **more: Any) -> dict[str, Any]:
    figures = {"tokens": 100, "seconds": seconds, "fresh_tokens": 50.0, "fresh_seconds": seconds / 2}
    whole = {"whole_tokens": 101, "whole_seconds": seconds + 1.0, "text": "same"}
    return {"peer": peer, "variant": variant, "piece": 1, "category": "qa", "id": item, **figures, **whole, **more}


def result(runs: list[dict[str, Any]], troubles: dict[str, str] | None = None) -> dict[str, Any]:
    peers = {
        OWN: {"variants": {"plain": "", "default": ""}, "troubles": {}},
        "llama.cpp": {"variants": {"plain": "", "ngram-mod": "", "ngram-cache": ""}, "troubles": troubles or {}},
    }
    return {"runs": runs, "peers": peers}


def test_the_table_says_how_much_faster_and_whose_text_changed() -> None:
    runs = []
    for i in range(6):
        runs += [run(OWN, "plain", str(i), 2.0), run(OWN, "default", str(i), 1.0)]
        runs += [run("llama.cpp", "plain", str(i), 4.0)]
        runs += [run("llama.cpp", "ngram-mod", str(i), 1.5, tokens=50, text="other" if i == 3 else "same")]
    found = {(row.peer, row.variant): row for row in peers_table.rows(result(runs, {"ngram-cache": "died: of age"}))}
    plain, mod = found["llama.cpp", "plain"], found["llama.cpp", "ngram-mod"]
    assert plain.decoding is not None
    assert plain.decoding.value == pytest.approx(4.0)
    assert mod.decoding is not None
    assert mod.decoding.value == pytest.approx(3.0), "at its pace, for as many tokens as sooner wrote"
    assert mod.whole is not None
    assert mod.whole.value == pytest.approx(2.5 / 2.0)
    assert (mod.same, mod.texts) == (5, 6)
    assert [row.variant for row in found.values() if row.best] == ["default", "ngram-mod"]
    text = peers_table.markdown(result(runs, {"ngram-cache": "died: of age"}))
    assert "no (5 of 6)" in text
    assert "- llama.cpp, ngram-cache: died: of age" in text
    assert peers_table.by_category(result(runs))["qa"] == {"llama.cpp": pytest.approx(3.0)}


def test_pairs_are_of_one_piece() -> None:
    """A machine that was slower yesterday says nothing about a peer that was measured then."""
    runs = [run(OWN, "default", "1", 1.0), run("llama.cpp", "plain", "1", 3.0)]
    later = [{**one, "piece": 2, "seconds": one["seconds"] * 10} for one in runs]
    lonely = [run("llama.cpp", "plain", "2", 500.0, piece=3)]
    (row,) = [
        r for r in peers_table.rows(result(runs + later + lonely)) if (r.peer, r.variant) == ("llama.cpp", "plain")
    ]
    assert row.decoding is not None
    assert row.decoding.value == pytest.approx(3.0)


def test_an_answer_is_cut_where_it_falls_into_a_loop() -> None:
    ticks = [(1, 0.5), *((n, 0.5 + 0.1 * (n - 1)) for n in range(2, 61))]
    ids = [*range(100, 130), *[7, 8] * 15]
    found = compare._figures({"ids": ids, "ticks": ticks, "seconds": 6.5}, ids)
    assert (found["tokens"], found["whole_tokens"], found["whole_seconds"]) == (59, 60, 6.5)
    assert found["seconds"] == pytest.approx(5.9)
    assert found["fresh_tokens"] == 31, "the first period is ordinary text"
    assert found["fresh_seconds"] == pytest.approx(3.1)
    straight = compare._figures({"text": "a b", "count": 60, "ticks": [ticks[0], ticks[-1]], "seconds": 6.5}, ids[:30])
    assert straight["fresh_tokens"] == straight["tokens"], "no loop, and no ids either"


def test_parts_of_the_prompts(tmp_path: Path) -> None:
    questions = [{"question_id": 5 * i, "category": "ab"[i % 2], "turns": [f"{i}?"]} for i in range(1, 9)]
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")

    def chosen(*options: str) -> list[str]:
        arguments = compare.parse(["run", "--questions", str(path), "--per-category", "3", *options])
        return [item.id for item in compare.items(arguments)]

    assert len(chosen()) == 6
    assert sorted(chosen("--part", "1/2") + chosen("--part", "2/2")) == sorted(chosen())
    assert chosen("--category", "a") == ["10", "20", "30"]
    with pytest.raises(SystemExit, match="no category c"):
        chosen("--category", "c")


def test_pieces_add_up_and_nothing_is_lost(tmp_path: Path) -> None:
    path, item = tmp_path / "peers.json", Item("5", "qa", "?")
    first = Result(path, {"model": "m"})
    first.describe(PEERS[0])
    assert not first.done(item, [(OWN, "plain")])
    first.add((OWN, "plain"), item, {"tokens": 1})
    first.save()
    second = Result(path, {"model": "m"})
    assert second.piece == 2
    assert second.done(item, [(OWN, "plain")])
    assert not second.done(item, [(OWN, "plain"), (OWN, "default")]), "then all take part anew"
    second.save()
    assert json.loads(path.read_text())["runs"][0]["tokens"] == 1
    with pytest.raises(SystemExit, match="another --result"):
        Result(path, {"model": "other"})
