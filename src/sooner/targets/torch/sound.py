"""A target that listens: a text's source is one token, which stands for a sound; behind it the decoder writes.

Knows which token of a text is a sound's. Does not know how sounds are encoded (`ears`), nor messages.

A sound's token is an id beyond the vocabulary, equal for equal sounds only: engine, batch and cached prefixes need no
case for it, and drafters are shown the text without it. A draft model with ears is given it, and listens by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sooner.errors import InvalidRequest
from sooner.sounds import SoundToken
from sooner.targets.torch.cross import Encoded
from sooner.targets.torch.ears import Ears, open_extractor
from sooner.targets.torch.memory import MemoryPlan, size
from sooner.targets.torch.pair import adopt_decoder, token_id
from sooner.targets.torch.source import SourceTarget
from sooner.targets.torch.target import TorchTarget
from sooner.types import Source
from sooner.waves import Sound

__all__ = ["SoundTarget", "adopt_sound"]


class SoundTarget(SourceTarget):
    """A `sooner.protocols.Target` that is `sooner.protocols.Hearing`, with ``ears``."""

    def __init__(self, decoder: TorchTarget, ears: Ears, *, end: int, first: int) -> None:
        super().__init__(decoder, self._listen, end=end, first=first, longest=1, kept=decoder.plan.slots)
        self.ears = ears

    @property
    def sound_bytes(self) -> int:
        """What the decoder reads of one sound."""
        return int(sum(tensor.nbytes for pair in self._runner.spare.layers for tensor in pair))

    def hear(
        self, sound: Sound, language: str | None = None, task: str | None = None, before: Sequence[int] = ()
    ) -> list[int]:
        """As `sooner.protocols.Hearing.hear`."""
        return self.ears.hear(sound, language, task, before)

    def source(self, prompt: Sequence[int]) -> Source:
        """As `SourceTarget.source`, with what the model never writes."""
        sounds = [token for token in prompt if isinstance(token, SoundToken)]
        if self._whole(prompt) is None:
            raise InvalidRequest(
                "this model writes down what it hears, and the prompt has no sound: give a message with one, as in "
                '{"type": "audio", "audio": "talk.wav"}',
                "prompt",
            )
        if len(sounds) > 1:
            raise InvalidRequest("the prompt has two sounds and the model hears one: ask for each by itself", "prompt")
        if sounds[0].heard.owner is not self.ears:
            raise InvalidRequest("the prompt has a sound that another model heard: build it for this one", "prompt")
        if len(prompt) == 1:
            raise InvalidRequest("the prompt lacks the decoder's first token behind its sound: add it", "prompt")
        return Source(1, 1 + self.decoder.context, self.ears.bans)

    def _listen(self, source: Sequence[int]) -> Encoded:
        """What the decoder reads of a sound, whoever heard it first."""
        (token,) = source
        assert isinstance(token, SoundToken)
        heard = token.heard if token.heard.owner is self.ears else self.ears.attend(token.heard.sound)
        encoded: Encoded = self._runner.port.entries(heard.states)
        return encoded

    def _whole(self, tokens: Sequence[int]) -> int | None:
        """As `SourceTarget._whole`: the sound's token is the whole source."""
        return 1 if tokens and isinstance(tokens[0], SoundToken) else None


def adopt_sound(
    model: Any, folder: Path, plan: MemoryPlan, *, log: Callable[[str], None] | None, **options: Any
) -> SoundTarget:
    """As `pair.adopt_pair`, for a model whose encoder reads sound."""
    extractor = open_extractor(folder)
    noise = np.random.default_rng(7).standard_normal(extractor.n_samples // 3).astype(np.float32) / 8
    given = extractor(noise, sampling_rate=extractor.sampling_rate, return_tensors="pt").input_features
    features = {"input_features": given.to(model.device, model.dtype)}
    decoder, port = adopt_decoder(model, plan, features, log=log, **options)
    ends = {"end": token_id(model, "eos_token_id"), "first": token_id(model, "decoder_start_token_id")}
    target = SoundTarget(decoder, Ears(port, extractor, decoder.vocab_size), **ends)
    if log:
        log(f"memory: a sound that is written down takes {size(target.sound_bytes)} more")
        if getattr(model.generation_config, "return_timestamps", None):
            log("the model's settings ask for time stamps, which sooner does not write: texts come without")
    return target
