"""Making a table: recipe, resumption after a real kill, refusals; and where tables are found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sooner.draft.table import SuccessorTable, TableDrafter, packaged_table
from sooner.errors import InvalidRequest
from sooner.train.collect import collect, read_texts
from sooner.train.make import Made, Recipe, collection_path, make_table, prompts_of
from sooner.train.table import build_table
from toy import toy_engine

MODEL = "toy-25-2-0-2.0"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))


def recipe(**more: Any) -> Recipe:
    given: dict[str, Any] = {"prompts": "built-in", "tokens": 400, "max_tokens": 40, "temperature": 0.8, "seed": 3}
    return Recipe(**{**given, "model": MODEL, "sooner": "0", **more})


def made(out: Path, prompts: Any = None, **more: Any) -> Made:
    return make_table(toy_engine(), prompts, out, recipe(**more), batch=1)


def test_a_table_holds_its_recipe_and_leaves_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "t.bin"  # a name is kept as it is
    result = made(out)
    table = SuccessorTable.load(out)
    assert (table.model, json.loads(table.recipe)["seed"], json.loads(table.recipe)["tokens"]) == (MODEL, 3, 400)
    assert result.contexts == table.contexts > 20
    assert (result.size, result.tokens >= 400) == (out.stat().st_size, True)
    assert {p.name for p in tmp_path.iterdir()} == {"t.bin", "cache"}
    TableDrafter(path=str(out), model=MODEL)


def test_the_same_recipe_makes_the_same_table(tmp_path: Path) -> None:
    made(tmp_path / "a")
    made(tmp_path / "b")
    made(tmp_path / "c", seed=4)
    a, b, c = (SuccessorTable.load(tmp_path / name) for name in "abc")
    assert all((a.keys[n] == b.keys[n]).all() and (a.tokens[n] == b.tokens[n]).all() for n in a.keys)
    assert any(a.keys[n].tolist() != c.keys[n].tolist() for n in a.keys)


def test_a_collection_of_another_recipe_is_neither_mixed_nor_lost(tmp_path: Path) -> None:
    out = tmp_path / "t.npz"
    texts = collection_path(out)
    texts.write_text(json.dumps({"recipe": recipe(seed=9).texts}) + "\n")
    collect(toy_engine(), ["abc"], texts, tokens=10, sampling=recipe().sampling)
    before = texts.read_bytes()
    with pytest.raises(InvalidRequest, match="other prompts, options"):
        made(out)
    assert texts.read_bytes() == before
    assert made(out, seed=9, tokens=500).tokens >= 500  # more tokens is the same collection


@pytest.mark.parametrize("head", [b"", b'{"rec', b"\xff\n", b"[]\n"])
def test_a_collection_without_texts_begins_anew(head: bytes, tmp_path: Path) -> None:
    collection_path(tmp_path / "t").write_bytes(head)
    assert made(tmp_path / "t").tokens >= 400


def test_users_prompts_are_taken_as_they_are_and_again_if_drawn(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text("abc {p} d\n\n??\n" + "h" * 300 + "\nfade\n")
    name, prompts = prompts_of(str(file))
    engine = toy_engine(context=100)
    drawn = make_table(engine, prompts, tmp_path / "drawn", recipe(prompts=name), batch=2)
    assert drawn.texts > 2
    once = make_table(engine, prompts, tmp_path / "once", recipe(prompts=name, temperature=0.0), batch=2)
    assert (once.texts, once.tokens < 400) == (2, True)


def test_a_trace_gives_its_prompt_to_the_same_model_only(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text(json.dumps({"type": "header", "prompt": [1, 2, 3], "fingerprint": {"model": MODEL}}) + "\n")
    _, prompts = prompts_of(str(trace))
    assert made(tmp_path / "t", prompts).tokens >= 400
    with pytest.raises(InvalidRequest, match="another model"):
        make_table(toy_engine(), prompts, tmp_path / "u", recipe(model="other"))


def test_a_users_table_goes_before_the_shipped_one(tmp_path: Path, default_sha: str) -> None:
    shipped = packaged_table(default_sha)
    assert shipped is not None
    assert packaged_table(default_sha, tmp_path) == shipped
    own = tmp_path / shipped.name
    build_table([([1], [2, 3])], model=default_sha).save(own)
    assert packaged_table(default_sha, tmp_path) == own
    assert packaged_table("", tmp_path) is None


@pytest.fixture
def default_sha() -> str:
    (shipped,) = (Path(packaged_table.__code__.co_filename).parent / "tables").glob("*.npz")
    return SuccessorTable.load(shipped).model


SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from commandline import Toy
from sooner.cli import main
from sooner.targets.toy import ToyTarget
from toy import V

class Slow(ToyTarget):
    def score(self, works):
        time.sleep({pause})
        return super().score(works)

sys.exit(main(sys.argv[1:], load=Toy(lambda: Slow(V))))
"""


def train(out: Path, pause: float) -> subprocess.Popen[bytes]:
    script = SCRIPT.format(tests=str(Path(__file__).resolve().parent.parent), pause=pause)
    options = ["--tokens", "600", "--max-tokens", "30", "--batch", "2", "-o", str(out)]
    command = [sys.executable, "-c", script, "train", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ))


def wait_for_texts(texts: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None and len(list(read_texts(texts))) < count:
        time.sleep(0.02)


def test_killed_twice_it_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "t.npz"
    texts = collection_path(out)
    kept = 0
    for _ in range(2):
        process = train(out, 0.01)
        wait_for_texts(texts, kept + 3, process)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
        assert not out.exists()
        assert len(list(read_texts(texts))) >= kept + 3
        kept = len(list(read_texts(texts)))
    before = [text.index for text in read_texts(texts)]
    process = train(out, 0.0)
    report, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    assert len(before) == len(set(before))
    texts_made = int(report.split(b" texts; ")[0].split()[-1])
    assert texts_made > kept
    assert SuccessorTable.load(out).contexts > 0
    assert not texts.exists()
