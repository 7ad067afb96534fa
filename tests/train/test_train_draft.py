"""Training a pruned draft on a tiny model: which layers, resumption, learning, and that what is exported is a model."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import PROMPTS, recipe, run, tiny_model

import sooner
from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.errors import InvalidRequest, UnsupportedModel
from sooner.loading import make_drafter, open_model
from sooner.store import ModelFiles, resolve
from sooner.train import draft_make
from sooner.train.collect import read_texts
from sooner.train.draft_make import DraftWorkshop, default_layers, evenly
from sooner.train.rows import read_rows, shards

torch_needed = pytest.mark.convert


@given(st.integers(2, 200), st.data())
def test_the_kept_layers_are_spread_from_the_first_to_the_last(layers: int, data: st.DataObject) -> None:
    kept = evenly(layers, data.draw(st.integers(1, layers - 1)))
    gaps = [b - a for a, b in pairwise(kept)]
    assert kept[0] == 0
    assert not gaps or (kept[-1] == layers - 1 and min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)
    assert 0 < default_layers(layers) < layers
    for bad in (0, layers, layers + 1):
        with pytest.raises(InvalidRequest, match="--layers must leave out some"):
            evenly(layers, bad)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return tiny_model(tmp_path_factory.mktemp("target"), layers=(4.0,) * 3)


@pytest.fixture(scope="module")
def engine(files: ModelFiles) -> Engine:
    return sooner.load(files.source, draft=None, budget=4)


@pytest.fixture(scope="module")
def collected(files: ModelFiles, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shop = DraftWorkshop(tmp_path_factory.mktemp("made") / "draft", files, vocabulary=320)
    assert shop.collect(engine, PROMPTS, recipe(files)) > 1000
    return shop.folder


def shop_at(tmp_path: Path, collected: Path, files: ModelFiles, **options: Any) -> DraftWorkshop:
    shutil.copytree(collected, tmp_path / "draft.work", dirs_exist_ok=True)
    return DraftWorkshop(tmp_path / "draft", files, **{"vocabulary": 320, **options})


def test_rows_come_with_the_whole_text_and_no_hidden_ones(collected: Path) -> None:
    kept = [p for name in ("rows", "held-out") for path in shards(collected / name) for p in read_rows(path)]
    found = sorted([*p.before.tolist(), *p.tokens.tolist()] for p in kept)
    texts = [text for text in read_texts(collected / "texts.jsonl") if len(text.tokens) > 1]
    assert found == sorted([*text.prompt, *text.tokens] for text in texts)
    assert all(p.hidden.shape == (len(p.ids), 0) for p in kept)


def test_what_cannot_be_done_is_one_line(files: ModelFiles, engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="not 3"):
        DraftWorkshop(tmp_path / "draft", files, layers=3)
    shop = DraftWorkshop(tmp_path / "draft", files)
    with pytest.raises(InvalidRequest, match="no rows to train on"):
        shop.fit(hours=0.0)
    with pytest.raises(InvalidRequest, match="no fitted draft yet"):
        shop.export()
    with pytest.raises(InvalidRequest, match="no draft model yet"):
        shop.judge(engine)


@torch_needed
def test_it_learns_and_is_a_model_like_any_other(
    files: ModelFiles, engine: Engine, collected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_at(tmp_path, collected, files)
    fit = shop.begin()
    before = fit.judge(shop.held_out())
    after = run(fit, shop, 80).judge(shop.held_out())
    assert after.loss < 0.8 * before.loss
    assert after.top1[0] > before.top1[0] + 0.1
    fit.save(shop.checkpoint)
    assert shop.export() > 10_000
    made = resolve(str(shop.out))
    assert (made.layers, made.vocab_size, made.context) == (1, files.vocab_size, files.context)
    assert made.sha256 != files.sha256
    found = shop.judge(engine)
    assert found.places == sum(len(passage.ids) for passage in shop.held_out())
    assert found.top1 == pytest.approx(after.top1, abs=0.06)
    assert found.top3[0] >= found.top1[0]

    plain = engine.generate_many([prompt for prompt, _ in PROMPTS[:6]], max_tokens=40, ignore_eos=True)
    spec = f"kind=model,path={shop.out},max=3,width=1,thrifty=no"
    opening = lambda path: open_model(path, pool_tokens=4096)  # noqa: E731 - a partial would hide its one argument
    engine.drafter = make_drafter(spec, engine.target, engine.codec, "", opening=opening, say=lambda line: None)
    engine.controller = FixedController(3)
    drafted = engine.generate_many([prompt for prompt, _ in PROMPTS[:6]], max_tokens=40, ignore_eos=True)
    engine.drafter = None
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert sum(c.speculation.accepted for c in drafted) > 0.05 * sum(c.speculation.drafted for c in drafted)

    kept = made.xml.read_bytes()
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("openvino.save_model", lambda *given, **options: _raise(RuntimeError(str(full))))
    with pytest.raises(InvalidRequest, match="cannot be written"):
        shop.export()
    monkeypatch.setattr(shutil, "copyfile", lambda *given: _raise(full))
    with pytest.raises(InvalidRequest, match=r"No space left.*free some space"):
        shop.export()
    assert made.xml.read_bytes() == kept
    assert {path.name for path in tmp_path.iterdir()} == {"draft", "draft.work"}


def _raise(error: Exception) -> None:
    raise error


@torch_needed
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(files: ModelFiles, collected: Path, tmp_path: Path) -> None:
    import torch

    shop = shop_at(tmp_path, collected, files)
    whole = run(shop.begin(), shop, 6)
    run(shop.begin(), shop, 3).save(shop.checkpoint)
    rest = run(shop.begin(), shop, 6)
    assert rest.seen == whole.seen
    for a, b in zip(whole.average.parameters(), rest.average.parameters(), strict=True):
        assert torch.equal(a, b)
    fresh = shop_at(tmp_path, collected, files, layers=2)
    with pytest.raises(InvalidRequest, match="keeps 1 layers"):
        fresh.begin()
    shop.checkpoint.write_bytes(shop.checkpoint.read_bytes()[:1000])
    with pytest.raises(InvalidRequest, match="no whole checkpoint"):
        shop.export()


@torch_needed
def test_rows_of_a_draft_are_no_rows_for_a_head_nor_its_checkpoint(
    files: ModelFiles, collected: Path, tmp_path: Path
) -> None:
    from sooner.train.head_make import HeadWorkshop

    shop = shop_at(tmp_path, collected, files)
    head = HeadWorkshop(tmp_path / "draft", files)
    with pytest.raises(InvalidRequest, match="no hidden rows"):
        head.begin()
    shop.begin().save(shop.checkpoint)
    with pytest.raises(InvalidRequest, match="another kind of drafter"):
        head.begin()


@torch_needed
@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_a_model_whose_layers_do_more_is_refused(
    arch: str, collected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_model(tmp_path, arch=arch)
    shop = shop_at(tmp_path, collected, other)
    if arch == "qwen2":  # has biases, which are no hindrance
        assert shop.begin().seen == 0
        monkeypatch.setattr(draft_make, "_SAME", 1e-9)  # the comparison does compare
    with pytest.raises(UnsupportedModel, match="do more than attention"):
        shop.begin()


@torch_needed
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_scaled_positions_are_refused(key: str, collected: Path, files: ModelFiles, tmp_path: Path) -> None:
    shutil.copytree(files.folder, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: {"rope_type": "llama3", "factor": 8.0}}))
    shop = shop_at(tmp_path, collected, replace(files, folder=config.parent))
    with pytest.raises(UnsupportedModel, match=r"rotary positions \(llama3\)"):
        shop.begin()


@torch_needed
def test_the_command_does_all_steps_and_says_how_to_use_it(files: ModelFiles, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(str(prompt) for prompt, _ in PROMPTS))
    out = tmp_path / "draft"
    options = ["--kind", "draft", "--layers", "1", "--tokens", "2000", "--max-tokens", "40", "--hours", "0.001"]
    done = subprocess.run(
        [sys.executable, "-m", "sooner", "train", str(prompts), "-m", files.source, *options, "-o", str(out)],
        env={**os.environ, "SOONER_CACHE": str(files.folder.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{out}: ")
    assert lines[0].endswith(f"use it with --draft kind=model,path={out}")
    assert [line.partition(" ")[0] for line in lines[1:5]] == ["held-out", *["position"] * 3]
    assert "a guess takes" in lines[5]
    assert "rows to train on" in done.stderr
    assert "held-out top-1" in done.stderr
