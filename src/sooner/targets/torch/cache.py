"""Every touch of transformers' cache and attention interfaces, and the versions they were tried with.

Knows `transformers.Cache`, the attention registry and what a forward takes. Does not know sessions or layouts: the
attention of a pass is whatever `Port.attending` holds while it runs.

A model's attention layers are handed to us through two public hooks: a cache object, whose ``update`` gives entries
back as they came, and an attention function registered by name, which stores and reads them in our own tensors.
transformers then builds no mask at all, so neither its mask code nor its cache classes take part.
"""

from __future__ import annotations

import inspect
from typing import Any

from transformers import Cache, __version__
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sooner.errors import TargetError, UnsupportedModel
from sooner.targets.torch.attention import Attending
from sooner.types import RUNNING_STATES

__all__ = ["OLDEST", "TOO_NEW", "Port", "cache_name", "check_version", "inner", "refuse_state", "running_states"]

OLDEST, TOO_NEW = (4, 57), (6,)
"""transformers from this version on and before that one. The suite runs on 5.5, `make test-ends` on the others."""

_NAME = "sooner"
_HOW = {"scaling": "scaling", "sliding_window": "window", "softcap": "softcap", "s_aux": "sinks"}
_STATEFUL = (*RUNNING_STATES, "linear_attention", "conv", "hybrid")
"""Words in the names of such layers; of a model alone the last say nothing (hybrids may have attention throughout)."""


class PassCache(Cache):
    """What a model takes for its cache: it hands entries through, and says that nothing came before them.

    Positions are given to every pass, so that no length is ever asked of it for a good reason.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """The entries as they came; the attention function stores them."""
        return key_states, value_states

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Nothing."""
        return 0

    def get_mask_sizes(self, query: Any, *_: Any, **__: Any) -> tuple[int, int]:
        """As many entries as rows: what masks that are never used would be made for."""
        return (query if isinstance(query, int) else int(query.shape[0])), 0

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        """Never."""
        return False

    @property
    def is_sliding(self) -> list[bool]:
        """No layer forgets by itself."""
        return [False]

    @property
    def is_compileable(self) -> bool:
        """Whether it has static shapes: it has none of its own."""
        return True


class Port:
    """A model whose attention layers call ``attending`` (one per pass)."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.attending: Attending | None = None
        self.windows: set[int] = set()
        self._takes = frozenset(inspect.signature(inner(model).forward).parameters)
        self._given = {cache_name(inner(model)): PassCache(), "use_cache": True, "return_dict": True}

    def connect(self) -> None:
        """Put our attention into the model. Raises `UnsupportedModel` for one that has no place for it."""
        ALL_ATTENTION_FUNCTIONS.register(_NAME, _attention)
        model = inner(self.model)
        model.set_attn_implementation(_NAME)
        if model.config._attn_implementation != _NAME:
            raise UnsupportedModel(f"{type(model).__name__} {NO_INTERFACE}")
        for module in model.modules():
            if hasattr(module, "layer_idx"):
                module._sooner_port = self

    def forward(self, tokens: Any, positions: Any, wanted: Any, attending: Attending) -> Any:
        """Logits ``[n, V]`` of the rows ``wanted`` (``[n]``) of ``tokens`` and ``positions`` (``[rows]``)."""
        more: dict[str, Any] = {"logits_to_keep": wanted} if "logits_to_keep" in self._takes else {}
        self.attending = attending
        try:
            result = self.model(
                **self.inputs(tokens, positions),
                **self._given,
                **more,
            )
        finally:
            self.attending = None
        logits = result.logits[0]
        return logits if more else logits.index_select(0, wanted)

    def inputs(self, tokens: Any, positions: Any) -> dict[str, Any]:
        """What a forward is given of ``tokens`` and ``positions``."""
        return {"input_ids": tokens[None], "position_ids": positions[None]}

    def attend(self, layer: int, query: Any, key: Any, value: Any, **how: Any) -> Any:
        """Called by the model's layers in a pass."""
        assert self.attending is not None, "a model on loan to sooner was run by somebody else"
        if window := how.get("window"):
            self.windows.add(window)
        return self.attending(layer, query, key, value, **how)


NO_INTERFACE = (
    "computes attention by itself instead of through transformers' attention interface, so its cache cannot be cut "
    "back to an accepted draft; use another model"
)


def cache_name(model: Any) -> str:
    """What the model's forward, and its `generate`, call a cache: it was renamed within version 5."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def inner(model: Any) -> Any:
    """The transformers model inside an adapter's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def running_states(config: Any) -> list[str]:
    """The kinds of a model's layers that keep a running state instead of entries per token.

    The model's name tells where its configuration, in some versions, does not tell layers apart.
    """
    model = config.get_text_config().model_type
    kinds = sorted({kind for kind in _layer_kinds(config) if any(word in kind for word in _STATEFUL)})
    return kinds or [model for word in RUNNING_STATES if word in model][:1]


def refuse_state(config: Any, name: str) -> None:
    """Raises `UnsupportedModel` for a model whose layers keep a running state, or attend in chunks."""
    if found := running_states(config):
        raise UnsupportedModel(
            f"{name} has {', '.join(found)} layers, which keep one running state instead of an entry per token: it "
            "cannot be cut back to an accepted draft, and transformers computes several new tokens from an empty state "
            "only; use a model with attention in every layer"
        )
    if any("chunked" in kind for kind in _layer_kinds(config)):
        raise UnsupportedModel(f"{name} attends in chunks, which sooner does not lay out; use another model")


def _layer_kinds(config: Any) -> list[str]:
    text = config.get_text_config()
    named = (getattr(text, name, None) for name in ("layer_types", "layers_block_type", "block_types"))
    return [str(kind) for kind in next(filter(None, named), ())]


def check_version() -> None:
    """Raises `TargetError` where the installed transformers is none that this file was tried with."""
    version = tuple(int(part) for part in __version__.split(".")[:2])
    if not OLDEST <= version < TOO_NEW:
        low, high = (".".join(map(str, end)) for end in (OLDEST, TOO_NEW))
        raise TargetError(
            f"transformers {__version__} is none that sooner knows (from {low}, before {high}): "
            'pip install "sooner[torch]"'
        )


def _attention(module: Any, query: Any, key: Any, value: Any, *_: Any, **how: Any) -> tuple[Any, None]:
    """What transformers calls as an attention function. Keywords besides those of `_HOW` concern training."""
    port: Port = module._sooner_port
    given = {ours: how.get(theirs) for theirs, ours in _HOW.items()}
    return port.attend(module.layer_idx, query, key, value, **given), None
