"""What a speech model of transformers (Whisper) makes of a sound: the encoder's states, and the decoder's first tokens.

Knows the feature extractor, and what a ``generation_config.json`` says of languages and tasks. Does not know caches,
passes or messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from sooner.errors import ContextOverflow, InvalidRequest, UnsupportedModel, one_line
from sooner.sounds import SoundToken
from sooner.targets.torch.cross import EncoderPort
from sooner.targets.torch.kept import Kept
from sooner.types import Bans
from sooner.waves import Sound, resample

__all__ = ["Ears", "Heard", "has_ears", "open_extractor"]


@dataclass(frozen=True, eq=False)
class Heard:
    """One ``sound`` as ``owner`` heard it: the encoder's ``states`` ``[1, S, H]``, the token that stands for it."""

    owner: Ears
    id: int
    sound: Sound
    states: Any

    @property
    def ids(self) -> int:
        """As `sooner.targets.torch.kept.Numbered`."""
        return 1


def has_ears(config: Any) -> bool:
    """Whether such a model hears sounds: its encoder reads them as Whisper's does."""
    return type(config) in transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING and config.model_type == "whisper"


def open_extractor(folder: Path) -> Any:
    """What prepares sounds for the model in ``folder``. Raises `UnsupportedModel` where it cannot be opened."""
    try:
        return transformers.WhisperFeatureExtractor.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise UnsupportedModel(
            f"{folder} does not say how sounds are prepared ({one_line(error)}): copy preprocessor_config.json there "
            "from the model's page"
        ) from error


class Ears:
    """The ears of the model behind ``port``. Sounds are encoded one at a time, each once as long as a text has it.

    ``bans``: what the model does not write.
    """

    def __init__(self, port: EncoderPort, extractor: Any, vocab_size: int) -> None:
        self._port = port
        self._extractor = extractor
        self._settings = _Settings(port.model)
        self._kept: Kept[Heard] = Kept(vocab_size)
        self.rate = int(extractor.sampling_rate)
        self.longest_s = float(extractor.n_samples / self.rate)
        never, first = (self._settings.ids(f"{name}suppress_tokens", vocab_size) for name in ("", "begin_"))
        self.bans = Bans(never, first)

    def hear(
        self, sound: Sound, language: str | None = None, task: str | None = None, before: Sequence[int] = ()
    ) -> list[int]:
        """As `sooner.protocols.Hearing.hear`. ``language``: its code, its English name or its token."""
        self._settings.check(language, task)
        said = [self._settings.previous(), *before] if before else []
        heard = self.attend(sound)
        first = self._settings.first(language, task, lambda: self._language(heard))
        return [SoundToken(heard.id, heard), *said, *first]

    def attend(self, sound: Sound) -> Heard:
        """What the encoder makes of ``sound``. Raises `ContextOverflow` for a long one, `TargetError`."""
        if sound.seconds > self.longest_s:
            raise ContextOverflow(
                f"the sound has {sound.seconds:.1f} s and the model hears {self.longest_s:g} s at a time: cut it into "
                f"pieces, as with ffmpeg -i FILE -f segment -segment_time {self.longest_s:g} part%d.wav",
                "messages",
            )
        samples = resample(sound, self.rate)
        key = hashlib.sha256(samples.tobytes()).digest()
        return self._kept.get(key, partial(self._encoded, samples))

    def _encoded(self, samples: Any) -> Heard:
        states = self._port.states(self.features(samples))
        return Heard(self, self._kept.next, Sound(samples, self.rate), states)

    def features(self, samples: Any) -> dict[str, Any]:
        """What the encoder is given for ``samples`` at ``rate``."""
        made = self._extractor(samples, sampling_rate=self.rate, return_tensors="pt").input_features
        model = self._port.model
        return {"input_features": made.to(model.device, model.dtype)}

    def _language(self, heard: Heard) -> int:
        """The language token that the decoder finds likeliest behind its start (Radford et al. 2022, section 2.3)."""
        row = self._port.first_row(self._settings.start, self._port.entries(heard.states))
        return max(self._settings.languages.values(), key=lambda token: float(row[token]))


class _Settings:
    """A model's generation settings, read as transformers' own ``generate`` reads them, without timestamps."""

    def __init__(self, model: Any) -> None:
        self._named = model.generation_config
        self._config = model.config
        self.start = int(self._get("decoder_start_token_id"))
        self.languages: Mapping[str, int] = self._get("lang_to_id") or {}
        self._tasks: Mapping[str, int] = self._get("task_to_id") or {}
        try:
            self.check(self._get("language"), self._get("task"))
        except InvalidRequest as error:
            raise UnsupportedModel(f"the model's generation_config.json contradicts itself: {error}") from error

    def ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """The tokens that a setting lists."""
        listed: Iterable[int] = self._get(name) or ()
        return tuple(token for token in listed if 0 <= token < vocab_size)

    def check(self, language: str | None, task: str | None) -> None:
        """Raises `InvalidRequest` for a language or task that the model does not have."""
        for what, value, token, known in (
            ("language", language, _token(language or ""), self.languages),
            ("task", task, task, self._tasks),
        ):
            if value is not None and token not in known:
                names = sorted(name.strip("<|>") for name in known)
                has = f"{', '.join(names)}" if names else "none to choose"
                raise InvalidRequest(f"this model has no {what} {value[:40]!r}: it has {has}", what)

    def previous(self) -> int:
        """The token in front of what was said before. Raises `InvalidRequest` where there is none."""
        token = self._get("prev_sot_token_id")
        if token is None:
            raise InvalidRequest(
                "this model takes no text beside a sound (its generation_config.json names no prev_sot_token_id): "
                "leave it out",
                "messages",
            )
        return int(token)

    def first(self, language: str | None, task: str | None, listen: Callable[[], int]) -> list[int]:
        """The decoder's first tokens; ``listen`` gives the language where nobody says it."""
        language, task = language or self._get("language"), task or self._get("task")
        tokens: list[int | None] = [self.start]
        if language is None and task is None:
            tokens += self._forced()
        if language is not None:
            tokens[1:2] = [self.languages[_token(language)]]
        elif self.languages and (len(tokens) < 2 or tokens[1] is None):
            tokens[1:2] = [listen()]
        if task is not None:
            tokens.append(self._tasks[task])
        elif language is not None and self._tasks and not set(self._tasks.values()) & set(tokens):
            tokens.append(self._tasks["transcribe"])
        silent = self._get("no_timestamps_token_id")
        if silent is not None and tokens[-1] != silent:
            tokens.append(silent)
        return [token for token in tokens if token is not None]

    def _forced(self) -> list[int | None]:
        """What older files force behind the start, place by place from the first on."""
        forced = self._get("forced_decoder_ids") or ()
        places = [place for place, _ in forced]
        return [token for _, token in forced] if places == [*range(1, len(places) + 1)] else []

    def _get(self, name: str) -> Any:
        own = getattr(self._named, name, None)
        return getattr(self._config, name, None) if own is None else own


def _token(language: str) -> str:
    """A language's token: of its code, its English name, or itself."""
    name = language.lower()
    return name if name.startswith("<|") else f"<|{TO_LANGUAGE_CODE.get(name, name)}|>"
