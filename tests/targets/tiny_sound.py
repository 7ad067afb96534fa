"""A tiny Whisper as a Hugging Face folder, trained for seconds to write down tones, and sounds for it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.prompt import SoundTemplate
from sooner.text import Tokenizer
from sooner.waves import Sound, read_sound

RATE = 16000
CONTEXT = 64
NOTES = "abcdefgh"
"""What a tone of each pitch is called."""

_PITCHES = 300.0 * 1.4 ** np.arange(len(NOTES))
_LENGTH = 6
MARKS = [
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|ko|>", "<|translate|>", "<|transcribe|>"),
    *("<|startofprev|>", "<|notimestamps|>", "<|0.00|>", "<|0.02|>"),
]
V = 256 + len(MARKS)


def id_of(mark: str) -> int:
    """The token of a mark."""
    return 256 + MARKS.index(mark)


def tones(text: str, *, korean: bool = False, seed: int = 0, rate: int = RATE) -> Sound:
    """A sound of one second or less that says ``text``; ``korean`` tones have overtones."""
    rng = np.random.default_rng(seed)
    t = np.arange(rate // _LENGTH) / rate
    spoken = [np.sin(2 * np.pi * _PITCHES[NOTES.index(note)] * t) for note in text]
    samples = np.concatenate([0.6 * np.sign(s) if korean else 0.6 * s for s in spoken])
    return Sound((samples + rng.normal(0, 0.005, len(samples))).astype(np.float32), rate)


def wav(sound: Sound) -> bytes:
    """A file of 16 bits a sample."""
    body = (np.clip(sound.samples, -1, 1) * 32767).astype("<i2").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sound.rate, 2 * sound.rate, 2, 16)
    return b"RIFF" + struct.pack("<I", 28 + len(body)) + b"WAVE" + form + struct.pack("<4sI", b"data", len(body)) + body


def asking(sound: Any, **more: Any) -> list[dict[str, Any]]:
    """A message with a sound."""
    given = wav(sound) if isinstance(sound, Sound) else sound
    return [{"role": "user", "content": [{"type": "audio", "audio": given, **more}]}]


def own(folder: Path) -> tuple[Any, Any]:
    """transformers' model and feature extractor."""
    import transformers

    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    return model, transformers.WhisperFeatureExtractor.from_pretrained(folder)


def written(model: Any, extractor: Any, sound: Any, **how: Any) -> list[int]:
    """What ``generate`` writes of a sound, without the end."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    given = extractor(heard(sound), sampling_rate=RATE, return_tensors="pt")
    with torch.inference_mode():
        made = model.generate(given.input_features, max_new_tokens=16, do_sample=False, num_beams=1, **how)
    return [token for token in made[0].tolist() if token not in (256, *range(V - 2, V))]


def heard(sound: Sound) -> Any:
    """The samples that a file keeps of it."""
    return read_sound(wav(sound), "x").samples


def engine_over(target: Any, folder: Path, drafter: Any = None, **how: Any) -> Engine:
    """An engine that writes down sounds."""
    codec = Tokenizer.load(folder)
    how = {"controller": FixedController(5), "chunk": 2, **how}
    return Engine(target, codec, template=SoundTemplate(target, codec), drafter=drafter, **how)


def build_sound(folder: Path, *, seed: int = 0, steps: int = 120, **more: Any) -> Path:
    """A model with a tokenizer, a feature extractor and generation settings in ``folder``."""
    import torch
    import transformers

    torch.manual_seed(seed)
    shape = {"d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 20, "vocab_size": V}
    heads = {f"{half}_attention_heads": 4 for half in ("encoder", "decoder")}
    wide = {f"{half}_ffn_dim": 96 for half in ("encoder", "decoder")}
    ends = {"eos_token_id": 256, "bos_token_id": 256, "pad_token_id": 256, "decoder_start_token_id": 257}
    places = {"max_source_positions": 50, "max_target_positions": CONTEXT}
    config = transformers.WhisperConfig(**{**shape, **heads, **wide, **ends, **places, "dropout": 0.0, **more})
    model = transformers.WhisperForConditionalGeneration(config)
    extractor = transformers.WhisperFeatureExtractor(feature_size=20, chunk_length=1)
    _train(model, extractor, steps, seed)
    model.generation_config = transformers.GenerationConfig(**settings())
    model.save_pretrained(folder)
    extractor.save_pretrained(folder)
    _tokenizer(folder)
    return folder


def settings() -> dict[str, Any]:
    """What OpenAI's multilingual models have in their generation_config.json."""
    ends = {"eos_token_id": 256, "bos_token_id": 256, "pad_token_id": 256, "decoder_start_token_id": 257}
    return {
        **ends,
        "lang_to_id": {name: id_of(name) for name in ("<|en|>", "<|ko|>")},
        "task_to_id": {name: id_of(f"<|{name}|>") for name in ("transcribe", "translate")},
        "forced_decoder_ids": [[1, None], [2, id_of("<|transcribe|>")]],
        "no_timestamps_token_id": id_of("<|notimestamps|>"),
        "prev_sot_token_id": id_of("<|startofprev|>"),
        "is_multilingual": True,
        "return_timestamps": False,
        "begin_suppress_tokens": [32, 256],
        "suppress_tokens": [ord("z"), *(id_of(mark) for mark in MARKS[1:7])],
        "max_length": CONTEXT,
    }


def _lesson(rng: np.random.Generator) -> tuple[NDArray[np.float32], list[int]]:
    """A sound and the decoder's tokens."""
    text = "".join(rng.choice(list(NOTES), int(rng.integers(1, _LENGTH + 1))))
    korean, translated = rng.random(2) < 0.5
    written = text.upper() if translated else text
    marks = (
        "<|startoftranscript|>",
        "<|ko|>" if korean else "<|en|>",
        "<|translate|>" if translated else "<|transcribe|>",
    )
    first = [*map(id_of, marks), id_of("<|notimestamps|>")]
    return tones(text, korean=bool(korean), seed=int(rng.integers(2**31))).samples, [*first, *written.encode(), 256]


def _train(model: Any, extractor: Any, steps: int, seed: int) -> None:
    """On a few lessons again and again."""
    import torch

    rng = np.random.default_rng(seed)
    lessons = [_lesson(rng) for _ in range(64)]
    given = extractor([sound for sound, _ in lessons], sampling_rate=RATE, return_tensors="pt").input_features
    longest = max(len(tokens) for _, tokens in lessons)
    rows = torch.tensor([tokens + [-100] * (longest - len(tokens)) for _, tokens in lessons])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for a model this small others cost more than they bring
    for _ in range(steps):
        logits = model(given, decoder_input_ids=rows[:, :-1].clamp(min=0)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    torch.set_num_threads(threads)
    model.eval()


def _tokenizer(folder: Path) -> None:
    """Bytes, OpenAI's marks, and time stamps that are no control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    core = Tokenizer(models.BPE({letter: i for i, letter in enumerate(_bytes())}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(MARKS[:-2])
    core.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS[-2:]])
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))


def _bytes() -> list[str]:
    """The letters that stand for bytes, each at its byte's place."""
    from sooner.text import _byte_alphabet

    return [letter for letter, _ in sorted(_byte_alphabet().items(), key=lambda pair: pair[1])]
