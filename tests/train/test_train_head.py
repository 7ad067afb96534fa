"""Training a head on a tiny model: rows, resumption, learning, and that what is exported runs as it was trained."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from training import PROMPTS, recipe, run, tiny_model

import sooner
from sooner.engine import Engine
from sooner.errors import InvalidRequest, MissingExtra
from sooner.store import ModelFiles
from sooner.train import workshop
from sooner.train.collect import Collected
from sooner.train.head_make import HeadWorkshop, default_taps
from sooner.train.rows import collect_rows, likeliest, read_rows, shards
from sooner.train.workshop import is_held_out
from sooner.types import Work

torch_needed = pytest.mark.convert


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return tiny_model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def engine(files: ModelFiles) -> Engine:
    return sooner.load(files.source, draft=None, taps=default_taps(files.layers))


def texts(engine: Engine, count: int = 12) -> list[Collected]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(4, 300, 5 + 9 * (i % 4)).tolist() for i in range(count)]
    got = engine.generate_many(prompts, max_tokens=30, temperature=0.7, seed=1, ignore_eos=True)
    return [Collected(i, tuple(p), c.token_ids) for i, (p, c) in enumerate(zip(prompts, got, strict=True))]


def test_rows_are_the_targets_own_and_lie_beside_their_tokens(engine: Engine, tmp_path: Path) -> None:
    written = texts(engine)
    rows = collect_rows(engine.target, written, tmp_path)
    passages = [passage for path in shards(tmp_path) for passage in read_rows(path)]
    assert rows == sum(len(p.ids) for p in passages) == sum(len(t.tokens) for t in written)
    for text, passage in zip(written, passages, strict=True):
        assert passage.tokens.tolist() == [text.prompt[-1], *text.tokens]
        session = engine.target.open(salt="alone")
        (alone,) = engine.target.score([Work(session, (*text.prompt, *text.tokens[:4]))])
        assert alone.hidden is not None
        shown = (passage.hidden[4].astype(np.uint32) << 16).view(np.float32)
        assert np.allclose(shown, alone.hidden[0], rtol=0.02, atol=0.02)
        assert passage.ids[4, 0] == alone.logits[0].argmax()
        p = np.exp(alone.logits[0] - alone.logits[0].max())
        assert passage.chances[4] == pytest.approx((p / p.sum())[passage.ids[4]], abs=1e-3)
        session.close()


@pytest.mark.parametrize("size", [7, 30, 320, 1536, 4096, 4100])
def test_the_likeliest_successors_are_found_in_vocabularies_of_any_size(size: int) -> None:
    drawn = np.random.default_rng(size).permutation(5 * size).reshape(5, size) / size
    logits = drawn.astype(np.float32)
    ids, chances = likeliest(logits)
    width = min(24, size)
    assert np.array_equal(ids, np.argsort(-logits, axis=1)[:, :width])
    p = np.exp(logits.astype(np.float64))
    assert np.allclose(chances, np.take_along_axis(p / p.sum(1, keepdims=True), ids, axis=1), rtol=2e-3, atol=1e-7)


def test_rows_are_collected_once_whatever_is_appended(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sooner.train.rows._SHARD", 64)
    written = texts(engine)
    collect_rows(engine.target, written[:7], tmp_path / "a")
    before = {path.name: path.stat().st_mtime_ns for path in shards(tmp_path / "a")}
    (tmp_path / "a" / ".rows-0000099.npz.1").write_bytes(b"half a file")
    assert collect_rows(engine.target, written, tmp_path / "a") == collect_rows(engine.target, written, tmp_path / "b")
    assert before.items() <= {path.name: path.stat().st_mtime_ns for path in shards(tmp_path / "a")}.items()
    for name in "ab":
        tokens = [p.tokens.tolist() for path in shards(tmp_path / name) for p in read_rows(path)]
        assert tokens == [[t.prompt[-1], *t.tokens] for t in written]
    shards(tmp_path / "b")[0].write_bytes(b"PK")
    with pytest.raises(InvalidRequest, match="remove it"):
        read_rows(shards(tmp_path / "b")[0])


@pytest.fixture(scope="module")
def collected(files: ModelFiles, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "head"
    shop = HeadWorkshop(out, files, vocabulary=150, window=16)
    assert shop.collect(engine, PROMPTS, recipe(files)) > 1000
    return shop.folder


def shop_at(tmp_path: Path, collected: Path, files: ModelFiles) -> HeadWorkshop:
    shutil.copytree(collected, tmp_path / "head.work")
    return HeadWorkshop(tmp_path / "head", files, vocabulary=150, window=16)


def test_held_out_prompts_are_never_trained_on(collected: Path, files: ModelFiles) -> None:
    trained = {p.tokens[0].item() for path in shards(collected / "rows") for p in read_rows(path)}
    lines = [json.loads(line) for line in (collected / "texts.jsonl").read_text().splitlines()[1:]]
    held = [line for line in lines if is_held_out(Collected(0, tuple(line["prompt"]), ()))]
    rows = sum(len(p.ids) for path in shards(collected / "held-out") for p in read_rows(path))
    assert 0 < len(held) < len(lines) / 4
    assert rows == sum(len(line["tokens"]) for line in held if len(line["tokens"]) > 1)
    assert trained


def test_what_cannot_be_done_is_one_line(files: ModelFiles, engine: Engine, tmp_path: Path) -> None:
    shop = HeadWorkshop(tmp_path / "head", files)
    with pytest.raises(InvalidRequest, match="no prompt can be used"):
        shop.collect(engine, [("x" * 4000, "")], recipe(files))
    with pytest.raises(InvalidRequest, match="are free"):
        shop.collect(engine, PROMPTS, recipe(files, tokens=10**13))
    with pytest.raises(InvalidRequest, match="no fitted head"):
        shop.export()


def test_texts_of_another_recipe_are_not_mixed_in(
    files: ModelFiles, engine: Engine, collected: Path, tmp_path: Path
) -> None:
    shop = shop_at(tmp_path, collected, files)
    with pytest.raises(InvalidRequest, match="other prompts, options"):
        shop.collect(engine, PROMPTS, recipe(files, seed=4))


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"sooner\[train\]"):
        workshop.torch_or_say("head")


@torch_needed
def test_it_learns_and_runs_as_it_was_trained(files: ModelFiles, collected: Path, tmp_path: Path) -> None:
    from sooner.control.cost import CostCurve
    from sooner.loading import open_head
    from sooner.train.judge import judge_head

    shop = shop_at(tmp_path, collected, files)
    fit = shop.begin()
    before = fit.judge(shop.held_out())
    after = run(fit, shop, 120).judge(shop.held_out())
    assert after.loss < 0.9 * before.loss
    assert after.top1[0] > 2 * before.top1[0]
    fit.save(shop.checkpoint)
    assert shop.export() > 1000
    head = open_head(str(shop.out), False, files=files, taps=shop.taps, threads=None)
    found = judge_head(head, shop.held_out(), CostCurve(rows=(2, 8), ms=(1e6, 1e6 + 1)))
    assert found.top1[0] == pytest.approx(after.top1[0], abs=0.05)
    assert found.top3[0] >= found.top1[0]
    assert found.speedup == pytest.approx(1 + found.top1[0] * (1 + found.top1[1] * (1 + found.top1[2])), rel=0.01)


@torch_needed
def test_the_same_seed_fits_the_same_head_also_across_a_checkpoint(
    files: ModelFiles, collected: Path, tmp_path: Path
) -> None:
    import torch

    shop = shop_at(tmp_path, collected, files)

    whole = run(shop.begin(), shop, 6)
    half = run(shop.begin(), shop, 3)
    half.save(shop.checkpoint)
    rest = run(shop.begin(), shop, 6)
    shop.seed, shop.checkpoint = 1, tmp_path / "none.pt"
    other = run(shop.begin(), shop, 6)
    assert rest.seen == whole.seen
    for a, b in zip(whole.average.parameters(), rest.average.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(other.average.parameters()), next(whole.average.parameters()))


@torch_needed
def test_a_killed_fit_goes_on_from_its_checkpoint(files: ModelFiles, collected: Path, tmp_path: Path) -> None:
    from sooner.train.fit import Fit
    from sooner.train.head import Head

    shop = shop_at(tmp_path, collected, files)
    code = (
        "import sys; from pathlib import Path; from sooner.store import resolve\n"
        "from sooner.train.head_make import HeadWorkshop\n"
        "shop = HeadWorkshop(Path(sys.argv[2]), resolve(sys.argv[1]), vocabulary=150, window=16)\n"
        "shop.fit(hours=1, every=0.5, progress=lambda fit, judged, share: print(fit.seen, flush=True))\n"
    )
    cache = {"SOONER_CACHE": str(files.folder.parents[1])}
    command = [sys.executable, "-c", code, files.source, str(shop.out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **cache}) as running:
        assert running.stdout is not None
        first = int(running.stdout.readline())
        time.sleep(0.3)
        running.send_signal(signal.SIGKILL)
    assert Fit.sizes(shop.checkpoint, Head)[0]["window"] == 16
    seen: list[int] = []
    shop.fit(hours=0.5 / 3600, every=0.1, progress=lambda fit, judged, share: seen.append(fit.seen))
    assert seen[0] > first > 0
    shop.checkpoint.write_bytes(shop.checkpoint.read_bytes()[:1000])
    with pytest.raises(InvalidRequest, match="no whole checkpoint"):
        shop.export()
