"""A trained head on disk: safetensors and a ``config.json`` with the ``speculators_config`` that other tools read.

Knows names and shapes, and for which target a head was made. Does not know how a head runs or is trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import CorruptModel, DraftError
from sooner.store.cache import cache_dir
from sooner.store.manifest import ModelFiles
from sooner.store.safetensors import read_safetensors, write_safetensors

__all__ = ["HeadFile", "HeadShape", "find_head", "fitting_head", "read_head", "write_head"]

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_LAYER = "layers.0."


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a head: ``hidden`` H, ``taps`` rows of the target side by side, attention ``heads`` and ``kv_heads`` of
    ``head_dim``, MLP ``intermediate``; ``window``: positions its attention reaches back."""

    hidden: int
    taps: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rope_theta: float
    eps: float
    window: int

    def matrices(self) -> dict[str, tuple[int, int]]:
        """The names of the file's matrices and their shapes ``(out, in)``."""
        size, inner, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = {"q_proj": (inner, 2 * size), "k_proj": (kv, 2 * size), "v_proj": (kv, 2 * size)}
        attention["o_proj"] = (size, inner)
        mlp = dict.fromkeys(("gate_proj", "up_proj"), (self.intermediate, size)) | {
            "down_proj": (size, self.intermediate)
        }
        return (
            {"fc.weight": (size, self.taps * size)}
            | {f"{_LAYER}self_attn.{name}.weight": shape for name, shape in attention.items()}
            | {f"{_LAYER}mlp.{name}.weight": shape for name, shape in mlp.items()}
        )

    def norms(self) -> tuple[str, ...]:
        """The names of the file's norms, each ``[H]``."""
        names = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        return (*(f"{_LAYER}{name}.weight" for name in names), "norm.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFile:
    """A head as it lies on disk (EAGLE-3, 2503.01840).

    ``layers``: the target's layers whose outgoing rows it reads, counted from 0. ``vocabulary``: ``[n]``, the target's
    ids that it can name, ascending. ``weights``: float32, named as in `HeadShape`, and ``lm_head.weight`` ``[n, H]``
    unless it is the target's own. ``vocab_size``: the target's V. ``norm_before_residual``: whether the stream starts
    from the normed state. ``target``: the sha256 of the target's weights, "" if unknown. ``made``: how, for the record.
    """

    shape: HeadShape
    layers: tuple[int, ...]
    vocabulary: NDArray[np.int64]
    weights: Mapping[str, NDArray[np.float32]]
    vocab_size: int
    norm_before_residual: bool = True
    target: str = ""
    target_name: str = ""
    made: Mapping[str, Any] = field(default_factory=dict)


def read_head(folder: Path) -> HeadFile:
    """The head in ``folder``. Raises `DraftError` if it is none or of a kind that does not run here, `CorruptModel` if
    it is damaged."""
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise DraftError(f"{folder} holds no head (no {_CONFIG}): name the folder that sooner train wrote") from error
    except ValueError as error:
        raise CorruptModel(f"{folder / _CONFIG} is no JSON: fetch or make the head again") from error
    if not isinstance(config, dict) or config.get("speculators_model_type") != "eagle3":
        raise DraftError(f"{folder} holds no head of type eagle3: make one with sooner train --kind head")
    weights = read_safetensors(folder / _WEIGHTS)
    shape, layers = _shape(config, folder)
    _check(weights, shape, folder)
    n = int(config.get("draft_vocab_size") or 0)
    vocab_size = int(config["transformer_layer_config"]["vocab_size"])
    offsets = weights.get("d2t", np.zeros(n, np.int64)).astype(np.int64)
    vocabulary = np.arange(len(offsets)) + offsets
    if not n or len(offsets) != n or vocabulary.min() < 0 or vocabulary.max() >= vocab_size:
        raise CorruptModel(f"{folder} has no sound draft vocabulary (d2t): fetch or make the head again")
    wanted = {*shape.matrices(), *shape.norms(), "lm_head.weight"}
    own = config.get("sooner", {})
    return HeadFile(
        shape=shape,
        layers=layers,
        vocabulary=vocabulary,
        weights={name: np.asarray(array, np.float32) for name, array in weights.items() if name in wanted},
        vocab_size=vocab_size,
        norm_before_residual=bool(config.get("norm_before_residual", True)),
        target=str(own.get("target_sha256", "")),
        target_name=str(config.get("speculators_config", {}).get("verifier", {}).get("name_or_path", "")),
        made=own.get("made", {}),
    )


def write_head(head: HeadFile, folder: Path) -> None:
    """Write ``head`` into ``folder``: matrices in bfloat16, the vocabulary as ``d2t`` and ``t2d``. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    n = len(head.vocabulary)
    known = np.zeros(head.vocab_size, np.bool_)
    known[head.vocabulary] = True
    arrays = {"d2t": head.vocabulary - np.arange(n), "t2d": known}
    write_safetensors(folder / _WEIGHTS, {**head.weights, **arrays}, bf16=frozenset(head.weights))
    (folder / _CONFIG).write_text(json.dumps(_config(head), indent=1) + "\n", encoding="utf-8")


def _config(head: HeadFile) -> dict[str, Any]:
    shape = head.shape
    layer = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "vocab_size": head.vocab_size,
        "attention_bias": False,
        "mlp_bias": False,
    }
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    verifier = {"name_or_path": head.target_name, "architectures": ["LlamaForCausalLM"]}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": len(head.vocabulary),
        "norm_before_residual": head.norm_before_residual,
        "norm_before_fc": False,
        "target_hidden_size": shape.hidden,
        # There, layer i means the rows that enter layer i: one more than ours, which leave it.
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in head.layers],
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": verifier,
        },
        "sooner": {"target_sha256": head.target, "window": shape.window, "made": dict(head.made)},
    }


def _shape(config: Mapping[str, Any], folder: Path) -> tuple[HeadShape, tuple[int, ...]]:
    try:
        layer = config["transformer_layer_config"]
        hidden, heads = int(layer["hidden_size"]), int(layer["num_attention_heads"])
        layers = tuple(int(i) - 1 for i in config["eagle_aux_hidden_state_layer_ids"])
        shape = HeadShape(
            hidden=hidden,
            taps=len(layers),
            heads=heads,
            kv_heads=int(layer.get("num_key_value_heads") or heads),
            head_dim=int(layer.get("head_dim") or hidden // heads),
            intermediate=int(layer["intermediate_size"]),
            rope_theta=float(layer.get("rope_theta") or (layer.get("rope_parameters") or {}).get("rope_theta", 1e4)),
            eps=float(layer.get("rms_norm_eps", 1e-6)),
            window=int(config.get("sooner", {}).get("window", 256)),
        )
        unusual = [
            name
            for name, refused in (
                ("norm_before_fc", config.get("norm_before_fc")),
                ("model_type", layer.get("model_type", "llama") != "llama"),
                ("num_hidden_layers", int(layer.get("num_hidden_layers", 1)) != 1),
                ("hidden_act", layer.get("hidden_act", "silu") != "silu"),
                ("attention_bias", layer.get("attention_bias")),
                ("rope_scaling", layer.get("rope_scaling")),
                ("target_hidden_size", (config.get("target_hidden_size") or hidden) != hidden),
            )
            if refused
        ]
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise CorruptModel(f"{folder / _CONFIG} does not describe a head: fetch or make it again") from error
    if unusual:
        raise DraftError(f"{folder} has {', '.join(unusual)} of a kind that does not run here; plain eagle3 heads do")
    return shape, layers


def _check(weights: Mapping[str, NDArray[Any]], shape: HeadShape, folder: Path) -> None:
    wanted: dict[str, tuple[int, ...]] = {**shape.matrices(), **dict.fromkeys(shape.norms(), (shape.hidden,))}
    for name, size in wanted.items():
        found = weights.get(name)
        if found is None or found.shape != size:
            has = "lacks it" if found is None else f"has {list(found.shape)}"
            raise CorruptModel(f"{folder} needs {name} of shape {list(size)} and {has}: fetch or make the head again")


def find_head(path: str, model: str) -> Path | None:
    """The folder at ``path``; without one that of the head made or shipped for ``model`` (a sha256), if any."""
    if path:
        return Path(path)
    places = (cache_dir("heads"), Path(str(resources.files("sooner.draft"))) / "heads") if model else ()
    return next((place / model[:16] for place in places if (place / model[:16] / _CONFIG).is_file()), None)


def fitting_head(folder: Path, files: ModelFiles, *, force: bool = False) -> HeadFile:
    """The head in ``folder`` if it serves the model ``files``. ``force``: also one made for other weights of the same
    sizes. Raises `DraftError`, `CorruptModel`."""
    head = read_head(folder)
    for what, ours, its in (
        ("hidden size", files.hidden_size, head.shape.hidden),
        ("vocabulary", files.vocab_size, head.vocab_size),
    ):
        if ours != its:
            raise DraftError(f"{folder} is a head for a {what} of {its}, this model has {ours}: use one made for it")
    if min(head.layers) < 0 or max(head.layers) >= files.layers:
        raise DraftError(f"{folder} reads layer {max(head.layers)}, this model has {files.layers}: use one made for it")
    if head.target != files.sha256 and not force:
        made = f"for other weights ({head.target[:12]})" if head.target else "for it does not say which weights"
        raise DraftError(f"{folder} was made {made}: make one with sooner train --kind head, or try it with force=true")
    return head
