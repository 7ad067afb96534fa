"""A head on OpenVINO beside a small real target: its arithmetic, its file, refusals, and the text stays the same."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import sooner
from sooner.bench.configuration import parse_configuration
from sooner.errors import CorruptModel, DraftError, SoonerError
from sooner.loading import open_head
from sooner.store import ModelFiles, resolve
from sooner.store.head_file import HeadFile, HeadShape, find_head, fitting_head, read_head, write_head
from sooner.store.safetensors import read_safetensors, write_safetensors
from sooner.targets.openvino.head import OpenVINOHead
from sooner.targets.openvino.weights import read_weights, shared_tables

Array = NDArray[np.float32]
LAYERS = (0, 1)
SHAPE = HeadShape(
    hidden=64, taps=2, heads=4, kv_heads=2, head_dim=16, intermediate=96, rope_theta=1e4, eps=1e-5, window=8
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = tmp_path_factory.mktemp("target")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "store"))
        patch.setenv("SOONER_CACHE", str(folder / "cache"))
        return resolve(str(importlib.import_module("tiny_gguf").write_gguf(folder / "tiny.gguf", tied=True)))


def made_head(files: ModelFiles, seed: int = 0, shape: HeadShape = SHAPE) -> HeadFile:
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {
        name: (rng.normal(size=size) / np.sqrt(size[1])).astype(np.float32) for name, size in shape.matrices().items()
    }
    weights |= {name: (1 + 0.1 * rng.normal(size=shape.hidden)).astype(np.float32) for name in shape.norms()}
    vocabulary = np.sort(rng.choice(files.vocab_size, 200, replace=False)).astype(np.int64)
    return HeadFile(
        shape=shape,
        layers=LAYERS,
        vocabulary=vocabulary,
        weights=weights,
        vocab_size=files.vocab_size,
        target=files.sha256,
    )


@pytest.fixture(scope="module")
def folder(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head")
    write_head(made_head(files), folder)
    return folder


def rounded(matrix: Array) -> Array:
    """As int8 with a scale per row holds it."""
    scale = np.abs(matrix).max(axis=1, keepdims=True) / 127
    return np.asarray(np.rint(matrix / scale) * scale, np.float32)


class Reference:
    """The head in numpy, one row at a time: EAGLE-3 as it is written down, on the rounded weights."""

    def __init__(self, head: HeadFile, embedding: Array, lm_head: Array) -> None:
        weights = {name: rounded(w) if w.ndim == 2 and "fc" not in name else w for name, w in head.weights.items()}
        self.head, self.embedding, self.lm_head = replace(head, weights=weights), embedding, rounded(lm_head)
        self.past: list[tuple[int, Array, Array]] = []

    def row(self, state: Array, token: int, newest: int, drafted: Sequence[Any] | None = None) -> Any:
        position, drafted = (newest, []) if drafted is None else (newest + 1 + len(drafted), drafted)
        w, shape, layer = self.head.weights, self.head.shape, "layers.0."

        def norm(x: Array, name: str) -> Array:
            return np.asarray(x / np.sqrt((x**2).mean() + shape.eps) * w[f"{name}.weight"], np.float32)

        def turned(x: Array) -> Array:
            half = shape.head_dim // 2
            angle = position * shape.rope_theta ** (-np.arange(half) / half)
            a, b = x[:, :half], x[:, half:]
            return np.concatenate(
                [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=1
            )

        read = norm(state, f"{layer}hidden_norm")
        both = np.concatenate([norm(self.embedding[token], f"{layer}input_layernorm"), read])
        q, k, v = (
            (w[f"{layer}self_attn.{name}_proj.weight"] @ both).reshape(-1, shape.head_dim) for name in ("q", "k", "v")
        )
        q, k = turned(q), turned(k)
        near = [entry for entry in self.past if newest - entry[0] < shape.window]
        keys = np.stack([*(e[1] for e in near), *(e[1] for e in drafted), k])
        values = np.stack([*(e[2] for e in near), *(e[2] for e in drafted), v])
        mixed = []
        for i in range(shape.heads):
            at = i // (shape.heads // shape.kv_heads)
            score = keys[:, at] @ q[i] / np.sqrt(shape.head_dim)
            p = np.exp(score - score.max())
            mixed.append((p / p.sum()) @ values[:, at])
        x = read + w[f"{layer}self_attn.o_proj.weight"] @ np.concatenate(mixed)
        inner = norm(x, f"{layer}post_attention_layernorm")
        gate, up = (w[f"{layer}mlp.{name}_proj.weight"] @ inner for name in ("gate", "up"))
        x = x + w[f"{layer}mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
        logits = self.lm_head @ norm(x, "norm")
        p = np.exp(logits - logits.max())
        return x, (position, k, v), p / p.sum()


def distance(files: ModelFiles, ours: HeadFile, written: HeadFile) -> float:
    """How far a head's log-chances are from the reference's for another, on average, over windows and drafts."""
    shared = read_weights(files.xml)
    reference = Reference(written, shared.embedding, shared.lm_head[written.vocabulary])
    runner = OpenVINOHead(ours, files.xml, width=4)
    session = runner.open()
    rng = np.random.default_rng(1)
    apart: list[float] = []
    for turn in range(12):  # past the window and around the ring
        m = 1 + turn % 3
        rows = rng.normal(size=(m, ours.shape.taps * ours.shape.hidden)).astype(np.float32)
        tokens = rng.integers(0, files.vocab_size, m).tolist()
        (guess,) = runner.start([session], [rows], [tokens])
        for row, token in zip(rows, tokens, strict=True):
            fed = reference.head.weights["fc.weight"] @ row
            state, entry, p = reference.row(fed, token, len(reference.past))
            reference.past.append(entry)
        drafted: list[Any] = []
        for _ in range(4):
            places = np.searchsorted(written.vocabulary, guess.ids)
            apart += np.abs(np.log(p[places]) - np.log(guess.chances)).tolist()
            follows = int(rng.integers(0, files.vocab_size))
            (guess,) = runner.extend([session], [follows])
            state, entry, p = reference.row(state, follows, len(reference.past) - 1, drafted)
            drafted.append(entry)
    return float(np.mean(apart))


def test_it_computes_what_is_written_down_across_windows_and_drafts(files: ModelFiles) -> None:
    head = made_head(files)
    near = distance(files, head, head)
    assert near < 0.15, "int8 weights and activations cost a few percent"
    for change in ({"window": 9}, {"rope_theta": 3e3}):
        other = replace(head, shape=replace(SHAPE, **change))
        assert distance(files, head, other) > 3 * near, change


def test_sequences_beside_each_other_guess_as_alone(files: ModelFiles) -> None:
    ours = OpenVINOHead(made_head(files), files.xml)
    rng = np.random.default_rng(2)
    rows = [rng.normal(size=(m, 128)).astype(np.float32) for m in (1, 3, 40, 7)]
    tokens = [rng.integers(0, files.vocab_size, len(r)).tolist() for r in rows]
    together, alone = [ours.open() for _ in rows], [ours.open() for _ in rows]
    found = ours.start(together, rows, tokens)
    ones = [ours.start([s], [r], [t])[0] for s, r, t in zip(alone, rows, tokens, strict=True)]
    found += ours.extend(together, [5, 6, 7, 8])
    ones += [ours.extend([s], [t])[0] for s, t in zip(alone, (5, 6, 7, 8), strict=True)]
    for a, b in zip(found, ones, strict=True):
        assert a.ids[0] == b.ids[0]
        assert a.chances == pytest.approx(b.chances, abs=0.01)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafting_with_it_does_not_change_a_token(files: ModelFiles, folder: Path, temperature: float) -> None:
    prompts = ["the quick brown fox", "lazy dog and the other one"]
    options: dict[str, Any] = {"max_tokens": 24, "temperature": temperature, "seed": 4, "logprobs": 0}
    spec = f"kind=head,path={folder},least=0,depth=3"
    with_head = sooner.load(str(files.source), draft=["suffix", spec], budget=6)
    alone = sooner.load(str(files.source), draft=None)
    ours, plain = (engine.generate_many(prompts, **options) for engine in (with_head, alone))
    assert with_head.warning is None
    assert sum(c.speculation.drafted for c in ours) > 10
    assert [(c.token_ids, c.logprobs) for c in ours] == [(c.token_ids, c.logprobs) for c in plain]


def test_an_engine_can_be_loaded_for_heads_that_draft_later(files: ModelFiles, folder: Path) -> None:
    spec = f"kind=head,path={folder}"
    engine = sooner.load(files.source, draft=None, heads=[spec], budget=4)
    parse_configuration(f"suffix+{spec}@4").equip(engine, engine.controller).install(engine)
    assert engine.generate("the quick brown", max_tokens=12, ignore_eos=True).speculation.drafted > 0
    assert engine.warning is None
    unready = sooner.load(files.source, draft=None)
    with pytest.raises(DraftError, match="show none"):
        parse_configuration(spec).equip(unready, unready.controller)


def test_a_file_comes_back_as_it_went_in(files: ModelFiles, folder: Path) -> None:
    head, found = made_head(files), read_head(folder)
    assert (found.shape, found.layers, found.target) == (SHAPE, LAYERS, files.sha256)
    assert np.array_equal(found.vocabulary, head.vocabulary)
    for name, array in head.weights.items():
        assert np.abs(found.weights[name] - array).max() <= np.abs(array).max() / 128, name
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_config"]["algorithm"] == "eagle3"
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2]  # there the rows that enter a layer bear its number
    stored = read_safetensors(folder / "model.safetensors")
    assert (np.flatnonzero(stored["t2d"]) == head.vocabulary).all()
    assert (np.arange(200) + stored["d2t"] == head.vocabulary).all()


def test_its_lm_head_is_the_targets_unless_it_brings_one(files: ModelFiles) -> None:
    import openvino as ov

    head = made_head(files)
    _, lm_head = shared_tables(ov.Core(), files.xml, head.vocabulary)
    own = replace(head, weights={**head.weights, "lm_head.weight": lm_head})
    other = replace(head, weights={**head.weights, "lm_head.weight": -lm_head})
    rows = np.random.default_rng(3).normal(size=(1, 128)).astype(np.float32)
    guesses = []
    for one in (head, own, other):
        ours = OpenVINOHead(one, files.xml)
        guesses.append(ours.start([ours.open()], [rows], [[3]])[0])
    assert guesses[0] == guesses[1] != guesses[2]


def changed(folder: Path, out: Path, **config: Any) -> Path:
    out.mkdir()
    (out / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    found = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**found, **config}))
    return out


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"speculators_model_type": "eagle"}, DraftError, "eagle3"),
        ({"draft_vocab_size": 7}, CorruptModel, "vocabulary"),
        ({"norm_before_fc": True}, DraftError, "norm_before_fc"),
        ({"transformer_layer_config": {}}, CorruptModel, "describe"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, CorruptModel, "fc.weight"),
    ],
)
def test_heads_of_another_kind_are_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any], error: type[SoonerError], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        read_head(changed(folder, tmp_path / "x", **change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": 65}, "hidden size"),
        ({"vocab_size": 321}, "vocabulary"),
        ({"layers": 1}, "layer 1"),
        ({"sha256": "0" * 64}, "other weights"),
    ],
)
def test_heads_for_another_model_are_refused(
    files: ModelFiles, folder: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(DraftError, match=says):
        fitting_head(folder, replace(files, **change))
    if "sha256" in change:
        assert fitting_head(folder, replace(files, **change), force=True).layers == LAYERS
    else:
        with pytest.raises(DraftError, match=says):
            fitting_head(folder, replace(files, **change), force=True)


def test_a_target_that_shows_other_layers_is_refused(files: ModelFiles, folder: Path) -> None:
    with pytest.raises(DraftError, match="layers 0, 1"):
        open_head(str(folder), False, files=files, taps=(1,), threads=None)
    with pytest.raises(DraftError, match="no head for this model"):
        open_head("", False, files=replace(files, sha256="f" * 64), taps=(), threads=None)


@pytest.mark.parametrize("cut", [0, 7, 100, 5000, -1])
def test_truncated_weights_are_named(folder: Path, tmp_path: Path, cut: int) -> None:
    out = changed(folder, tmp_path / "x")
    data = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(data[:cut])
    with pytest.raises(CorruptModel, match="truncated"):
        read_head(out)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DraftError, match="holds no head"):
        read_head(tmp_path)
    (changed(folder, tmp_path / "x") / "model.safetensors").unlink()
    with pytest.raises(CorruptModel, match="cannot be read"):
        read_head(tmp_path / "x")


def test_a_made_head_is_found_by_its_model(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path))
    assert find_head("", "abc") is None
    assert find_head("there", "abc") == Path("there")
    (tmp_path / "heads").mkdir(exist_ok=True)
    changed(folder, tmp_path / "heads" / "abc")
    assert find_head("", "abc") == tmp_path / "heads" / "abc"


def test_safetensors_keep_every_type(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([True, False]),
        "c": np.array(-3, np.int64),
        "d": np.zeros((0, 4), np.int8),
        "e": np.array([1.0, -2.5, 3.14159], np.float32),
    }
    write_safetensors(tmp_path / "x", arrays, bf16=frozenset("e"))
    found = read_safetensors(tmp_path / "x")
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert np.allclose(found[name], array, rtol=0.01)
    assert found["e"].dtype == np.float32
    assert found["e"][2] != arrays["e"][2]


def test_what_a_head_takes_is_said(files: ModelFiles, folder: Path) -> None:
    said: list[str] = []
    runner = open_head(str(folder), False, files=files, taps=LAYERS, threads=None, say=said.append)
    assert said == [f"memory: the head {folder} takes 0 MB besides the target"]
    assert isinstance(runner, OpenVINOHead)
    weights = sum(out * into for out, into in SHAPE.matrices().values()) + 200 * SHAPE.hidden
    assert 2 * weights <= runner.memory < 3 * weights
