"""Encoder-decoder models of transformers: the encoder run once a source, the decoder's attention over our cache.

Knows how such models name their attention layers and place their rows. Does not know sessions, slots' owners or text.

A decoder's attention layers are replaced by ones that use their projections: towards the text they attend as every
model's do (`attention.ByChains`), towards the source they read the keys and values that were made of it once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from sooner.errors import TargetError, UnsupportedModel, one_line
from sooner.targets.torch.attention import ROWS, ByChains, attend
from sooner.targets.torch.cache import Port, inner
from sooner.targets.torch.device import out_of_memory
from sooner.targets.torch.kv import KVTensors
from sooner.targets.torch.layout import Chain, Text
from sooner.targets.torch.runner import Runner
from sooner.targets.torch.share import drop_module, same_weights

__all__ = ["CrossRunner", "Encoded", "EncoderPort"]

_CROSS = ("encoder_attn", "EncDecAttention")
_SELF = ("self_attn", "SelfAttention")
_PROJECTIONS = (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("out_proj", "o"))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A source: the encoder's ``states`` ``[1, S, H]``, and what the decoder reads of them, keys and values
    ``[1, heads, S, d]`` of each of its layers."""

    states: Any
    layers: tuple[tuple[Any, Any], ...]


class Relative:
    """T5's attention bias by distance (Raffel et al. 2020, section 2.1): ``[heads, most + 1]``, constant beyond."""

    def __init__(self, attention: Any) -> None:
        most = int(attention.relative_attention_max_distance)
        with torch.no_grad():
            self._by_distance = attention.compute_bias(most + 1, most + 1)[0, :, -1].flip(-1).contiguous()

    def __call__(self, positions: Any, columns: Any) -> Any:
        """``[heads, rows, columns]`` for rows at ``positions`` ``[rows, 1]`` and entries at ``columns`` ``[1, n]``."""
        most = self._by_distance.shape[1] - 1
        return self._by_distance[:, (positions - columns).clamp_(0, most)]


class _Attention(nn.Module):
    """What a decoder's attention layer computes, from its own projections, in the way that the pass says."""

    def __init__(
        self, own: Any, port: EncoderPort, layer: int, *, cross: bool, relative: Relative | None, results: int
    ) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (_first(own, names) for names in _PROJECTIONS)
        self._heads = int(_first(own, ("num_heads", "n_heads")))
        self._scaling = float(getattr(own, "scaling", 1.0))
        self._port, self._layer, self._cross, self._relative = [port], layer, cross, relative
        self._besides = (None,) * (results - 1)

    def forward(self, hidden_states: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
        """``[1, rows, H]`` to the same, and nothing in the place of whatever else ``own`` returned."""
        attending = self._port[0].crossing
        query = self._split(self.q(hidden_states))
        if self._cross:
            found = attending.cross(self._layer, query, self._scaling)
        else:
            key, value = self._split(self.k(hidden_states)), self._split(self.v(hidden_states))
            found = attending(self._layer, query, key, value, scaling=self._scaling, relative=self._relative)
        return self.o(found.reshape(*hidden_states.shape[:-1], -1)), *self._besides

    def entries(self, states: Any) -> tuple[Any, Any]:
        """Keys and values of the encoder's ``states`` ``[1, S, H]``."""
        return self._split(self.k(states)), self._split(self.v(states))

    def _split(self, rows: Any) -> Any:
        return rows.view(*rows.shape[:-1], self._heads, -1).transpose(1, 2)


class _Positions(nn.Module):
    """A decoder's position embedding, asked for the positions of the pass whatever the model believes they are."""

    def __init__(self, own: Any, port: EncoderPort) -> None:
        super().__init__()
        self.own = own
        self._port = [port]

    def forward(self, *given: Any, **how: Any) -> Any:
        return self.own(*given, **{**how, "position_ids": self._port[0].positions})


class EncoderPort(Port):
    """A model whose decoder calls ``crossing`` in a pass, one pass at a time. Also runs its encoder."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.positions: Any = None
        self._crossing: Crossing | _First | None = None
        self._turn = threading.Lock()
        self._layers: list[_Attention] = []
        self._nothing: Any = None

    @property
    def crossing(self) -> Crossing | _First:
        """How the rows of the current pass attend."""
        assert self._crossing is not None, "a model on loan to sooner was run by somebody else"
        return self._crossing

    @property
    def encoder(self) -> Any:
        """The model's encoder; a stand-in once it was dropped."""
        return inner(self.model).get_encoder()

    def connect(self) -> None:
        """Put our attention into the decoder. Raises `UnsupportedModel` for one whose layers are named otherwise."""
        model = inner(self.model)
        try:
            decoder = model.get_decoder()
            relative: Relative | None = None
            own, towards = self._replaced(decoder, _SELF), self._replaced(decoder, _CROSS)
            self._nothing = next(model.parameters()).new_zeros((1, 1, model.config.get_text_config().hidden_size))
            count = self._results([attention for *_, attention in (*own, *towards)])
            for layer, (parent, name, attention) in enumerate(own):
                if getattr(attention, "has_relative_attention_bias", False):
                    relative = Relative(attention)
                how: dict[str, Any] = {"relative": relative, "results": count[attention]}
                setattr(parent, name, _Attention(attention, self, layer, cross=False, **how))
            for layer, (parent, name, attention) in enumerate(towards):
                how = {"relative": None, "results": count[attention]}
                self._layers.append(_Attention(attention, self, layer, cross=True, **how))
                setattr(parent, name, self._layers[-1])
        except (AttributeError, KeyError, TypeError, RuntimeError) as error:
            raise UnsupportedModel(
                f"{type(model).__name__} lays out its decoder in a way sooner does not know ({one_line(error)}); use "
                "another model"
            ) from error
        if not own or len(own) != len(self._layers):
            raise UnsupportedModel(
                f"{type(model).__name__} has {len(own)} layers towards the text and {len(self._layers)} towards the "
                "source, where sooner knows decoders with as many of both; use another model"
            )
        if hasattr(decoder, "embed_positions"):
            decoder.embed_positions = _Positions(decoder.embed_positions, self)

    def encode(self, source: Sequence[int]) -> Encoded:
        """Read ``source`` once. Raises `TargetError`."""
        given = torch.tensor([source], device=self.model.device)
        encoded: Encoded = self.entries(self.states({"input_ids": given}))
        return encoded

    @torch.inference_mode()
    def states(self, given: Mapping[str, Any]) -> Any:
        """``[1, S, H]``: what the encoder makes of its inputs. Raises `TargetError`."""
        try:
            return self.encoder(**given, return_dict=True).last_hidden_state
        except Exception as error:
            if out_of_memory(error):
                raise TargetError(
                    f"{self.model.device} is out of memory over a source: give a shorter one, or fewer at a time"
                ) from error
            raise TargetError(f"the encoder failed: {one_line(error)}") from error

    def entries(self, states: Any) -> Encoded:
        """What this decoder reads of an encoder's ``states``, its own or those of the same encoder elsewhere."""
        with torch.inference_mode():
            return Encoded(states, tuple(layer.entries(states) for layer in self._layers))

    def drop_encoder(self) -> int:
        """Do without the encoder from now on: what the decoder reads is given as `entries`. The bytes freed."""
        return drop_module(self.model, self.encoder)

    def forward(self, tokens: Any, positions: Any, wanted: Any, attending: Any) -> Any:
        """As `Port.forward`; ``attending`` is a `Crossing`."""
        with self._turn:
            self._crossing, self.positions = attending, positions
            try:
                result = self.model(
                    encoder_outputs=BaseModelOutput(last_hidden_state=self._nothing),
                    decoder_input_ids=tokens[None],
                    use_cache=False,
                    return_dict=True,
                )
            finally:
                self._crossing = self.positions = None
        return result.logits[0].index_select(0, wanted)

    @torch.inference_mode()
    def first_row(self, token: int, source: Encoded) -> Any:
        """``[V]``: the decoder's row behind ``token`` alone, in any thread. Raises `TargetError`."""
        place = torch.zeros(1, dtype=torch.int64, device=self.model.device)
        try:
            return self.forward(place + token, place, place, _First(source))[0]
        except Exception as error:
            raise TargetError(f"the decoder failed: {one_line(error)}") from error

    @torch.inference_mode()
    def _results(self, attentions: Sequence[Any]) -> dict[Any, int]:
        """How many values each of ``attentions`` returns: it differs by family and by version of transformers."""
        found: dict[Any, int] = {}
        hooks = [each.register_forward_hook(lambda its, _, out: found.update({its: len(out)})) for each in attentions]
        token = torch.zeros((1, 1), dtype=torch.int64, device=self.model.device)
        nothing = BaseModelOutput(last_hidden_state=self._nothing)
        self.model(encoder_outputs=nothing, decoder_input_ids=token, use_cache=False)
        for hook in hooks:
            hook.remove()
        return found

    def _replaced(self, decoder: Any, names: Sequence[str]) -> list[tuple[Any, str, Any]]:
        return [
            (parent, name, child)
            for parent in decoder.modules()
            for name, child in parent.named_children()
            if name in names
        ]


class Crossing(ByChains):
    """Attention of a pass over texts that have sources each: ``sources`` by slot, ``spare`` for those without."""

    def __init__(self, kv: KVTensors, texts: Sequence[Text], sources: Mapping[int, Encoded], spare: Encoded) -> None:
        super().__init__(kv, texts)
        self._texts = [(text, sources.get(text.slot, spare)) for text in texts]
        self._biased: dict[tuple[int, int, int], Any] = {}

    def cross(self, layer: int, query: Any, scaling: float) -> Any:
        """``query`` ``[1, heads, rows, d]`` of the pass's rows over each text's source; ``[1, rows, heads, d]``."""
        out = query.new_zeros((1, query.shape[2], query.shape[1], query.shape[3]))
        for text, source in self._texts:
            end = text.root + 1 + text.nodes
            rows = query[:, :, text.first : end]
            missing = -rows.shape[2] % ROWS
            if missing:
                rows = torch.cat([rows, rows[:, :, -1:].expand(-1, -1, missing, -1)], dim=2)
            found = attend(rows, *source.layers[layer], None, {"scaling": scaling})
            out[:, text.first : end] = found[:, : end - text.first]
        return out

    def _mask(self, chain: Chain, length: int, asked: Any) -> Any:
        mask = super()._mask(chain, length, asked)
        relative: Relative | None = asked.how.get("relative")
        if relative is None:
            return mask
        rows, device = asked.query.shape[2], asked.query.device
        key = (id(chain), rows, id(relative))
        if key not in self._biased:
            last = chain.start + len(chain.rows) - 1
            positions = torch.arange(chain.start, chain.start + rows, device=device).clamp_(max=last)[:, None]
            self._biased[key] = mask + relative(positions, torch.arange(length, device=device)[None])[None]
        return self._biased[key]


class _First:
    """Attention of a text's first token, which sees itself and its source, over no cache."""

    def __init__(self, source: Encoded) -> None:
        self._source = source

    def __call__(self, layer: int, query: Any, key: Any, value: Any, **how: Any) -> Any:
        return value.transpose(1, 2)

    def cross(self, layer: int, query: Any, scaling: float) -> Any:
        return attend(query, *self._source.layers[layer], None, {"scaling": scaling})


class CrossRunner(Runner):
    """Runs passes of a decoder. ``sources``: by slot, those of the coming pass; ``spare``: for texts without one, as
    measurements have them."""

    port: EncoderPort
    spare: Encoded
    sources: Mapping[int, Encoded] = {}

    def attending(self, texts: Sequence[Text]) -> Crossing:
        """As `Runner.attending`."""
        return Crossing(self.kv, texts, self.sources, self.spare)

    def shares(self, other: CrossRunner) -> bool:
        """Whether ``other`` has another encoder that is the same: what both make of a source, and every weight."""
        ours, theirs = (one.port.encoder for one in (self, other))
        alike = ours is not theirs and self.spare.states.device == other.spare.states.device
        return alike and torch.equal(self.spare.states, other.spare.states) and same_weights(ours, theirs)


def _first(module: Any, names: Sequence[str]) -> Any:
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"{type(module).__name__} has no {' or '.join(names)}")
