"""Sound as samples of one channel: read from WAV files, and brought to another rate.

Knows RIFF chunks and resampling; other formats it leaves to soundfile, where that is installed. Does not know models,
messages or where files lie.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sooner.errors import InvalidRequest, one_line

__all__ = ["Samples", "Sound", "read_sound", "resample"]

Samples = NDArray[np.float32]
"""``[n]``, each in [-1, 1] where nothing is too loud."""


_RATES = (4000, 192000)


@dataclass(frozen=True, eq=False)
class Sound:
    """One channel: ``samples`` ``[n]``, ``rate`` of them a second."""

    samples: Samples
    rate: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / self.rate

    def checked(self, param: str) -> Sound:
        """Itself. Raises `InvalidRequest` where there is nothing to hear, or what is no number."""
        if not _RATES[0] <= self.rate <= _RATES[1]:
            raise InvalidRequest(
                f"the sound has {self.rate} samples a second and sooner takes {_RATES[0]} to {_RATES[1]}: convert it, "
                "as with ffmpeg -i FILE -ar 16000 FILE.wav",
                param,
            )
        if not len(self.samples):
            raise InvalidRequest("the sound has no samples: give one that was recorded", param)
        if not np.isfinite(self.samples).all():
            raise InvalidRequest("the sound has samples that are no numbers: convert it again", param)
        return self


def read_sound(data: bytes, param: str) -> Sound:
    """The sound in a file, its channels mixed. Raises `InvalidRequest`, naming ``param``."""
    if not data:
        raise InvalidRequest("the sound file is empty: give a WAV file", param)
    try:
        found = _wave(data)
        return (found if found is not None else _other(data, param)).checked(param)
    except struct.error:
        raise _damaged("its header is cut off", param) from None
    except _Damaged as error:
        raise _damaged(str(error), param) from None


class _Damaged(Exception):
    """What is wrong with a WAV file."""


def _damaged(reason: str, param: str) -> InvalidRequest:
    return InvalidRequest(f"the sound cannot be read ({reason}): give an undamaged WAV file", param)


_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN = 0x7FFFF000
"""A size of at least this was not known to whoever wrote the file: a stream's."""

_SAMPLES: dict[tuple[int, int], Callable[[bytes], Any]] = {
    (_PCM, 8): lambda data: (np.frombuffer(data, "u1").astype(np.float32) - 128) / 128,
    (_PCM, 16): lambda data: np.frombuffer(data, "<i2").astype(np.float32) / 2**15,
    (_PCM, 24): lambda data: _three_bytes(data).astype(np.float32) / 2**23,
    (_PCM, 32): lambda data: (np.frombuffer(data, "<i4") / 2**31).astype(np.float32),
    (_FLOAT, 32): lambda data: np.frombuffer(data, "<f4").astype(np.float32),
    (_FLOAT, 64): lambda data: np.frombuffer(data, "<f8").astype(np.float32),
}
"""By kind and bits of a sample. Written out, as the standard library's `wave` reads no floats."""


def _wave(data: bytes) -> Sound | None:
    """A WAV file's sound; None for other files and for kinds of samples that are rare. Raises `_Damaged`."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return None
    chunks = dict(_chunks(data))
    if b"fmt " not in chunks or b"data" not in chunks:
        raise _Damaged("it has no samples" if b"fmt " in chunks else "it does not say how it is laid out")
    form, body = chunks[b"fmt "], chunks[b"data"]
    kind, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", form[:16])
    if kind == _EXTENSIBLE:
        (kind,) = struct.unpack("<H", form[24:26])
    if not channels or not rate or frame != channels * ((bits + 7) // 8):
        raise _Damaged(f"it says {channels} channels of {bits} bits in {frame} bytes, {rate} times a second")
    if (kind, bits) not in _SAMPLES:
        return None
    samples = _SAMPLES[kind, bits](body[: len(body) // frame * frame])
    return Sound(samples.reshape(-1, channels).mean(axis=1, dtype=np.float32), rate)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        rest = len(data) - at - 8
        if size > rest and size < _UNKNOWN:
            raise _Damaged(f"it ends {size - rest} bytes too early")
        yield name, data[at + 8 : at + 8 + min(size, rest)]
        at += 8 + size + size % 2


def _three_bytes(data: bytes) -> NDArray[np.int32]:
    parts = np.frombuffer(data, "u1").reshape(-1, 3).astype(np.int32)
    signed: NDArray[np.int32] = (parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24) >> 8
    return signed


_MOST_SECONDS = 600
"""Of a compressed file: one of a few bytes may hold days."""

_MOST_SAMPLES = 2 * 48000 * _MOST_SECONDS
"""Of all its channels, for the same reason."""


def _other(data: bytes, param: str) -> Sound:
    """By soundfile (FLAC, OGG, MP3, rarer kinds of WAV). Raises `InvalidRequest`, with what installs it."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: its library is not there
        raise InvalidRequest(
            "the sound is no WAV file of 8 to 32 bits, which is what sooner reads by itself: pip install soundfile for "
            "others, or convert it, as with ffmpeg -i FILE -ac 1 -ar 16000 FILE.wav",
            param,
        ) from None
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = int(file.samplerate)
            if file.frames > _MOST_SECONDS * rate:
                raise InvalidRequest(f"the sound has {file.frames / rate:.0f} seconds: cut it into pieces", param)
            if file.frames * file.channels > _MOST_SAMPLES:
                raise InvalidRequest(
                    f"the sound has {file.channels} channels of {rate} samples a second: mix it down to one, as with "
                    "ffmpeg -i FILE -ac 1 -ar 16000 FILE.wav",
                    param,
                )
            samples = file.read(dtype="float32", always_2d=True)
    except InvalidRequest:
        raise
    except Exception as error:  # decoders raise what they like over damaged files
        raise InvalidRequest(
            f"the sound cannot be read ({one_line(error)}): give an undamaged WAV, FLAC, OGG or MP3 file", param
        ) from None
    return Sound(samples.mean(axis=1, dtype=np.float32), rate)


_CROSSINGS = 32
"""Zero crossings of the sinc on either side: how sharp the filter is."""

_PASSED = 0.95
"""Of the lower of both bands, the part that the filter's edge is put at."""

_KAISER = 9.0
"""Of the window, Kaiser's beta: what is filtered out comes down by some 90 dB."""

_BLOCK = 1 << 12
"""Rows made at a time, so that no rate takes much memory."""


def resample(sound: Sound, rate: int) -> Samples:
    """``[ceil(seconds * rate)]``: the sound at ``rate`` samples a second.

    Band-limited interpolation by a windowed sinc (Smith and Gossett 1984, "A flexible sampling-rate conversion
    method"), its cut-off below the lower of both rates' halves, so that nothing is mirrored into what can be heard.
    """
    if sound.rate == rate:
        return sound.samples
    step = gcd(sound.rate, rate)
    down, up = sound.rate // step, rate // step
    edge = _PASSED * min(1.0, rate / sound.rate)
    reach = int(np.ceil(_CROSSINGS / edge))
    near = np.arange(1 - reach, reach + 1)
    filters = np.concatenate([_filters(phases / up, near, edge, reach) for phases in _blocks(up)])
    padded = np.pad(sound.samples, reach)
    made = np.empty(-(-len(sound.samples) * up // down), dtype=np.float32)
    for at in _blocks(len(made)):
        places = at * down
        heard = padded[(places // up)[:, None] + near[None] + reach]
        made[at] = np.einsum("ij,ij->i", heard, filters[places % up])
    return made


def _blocks(count: int) -> list[NDArray[np.int64]]:
    """0 to ``count``, in pieces."""
    return [np.arange(first, min(first + _BLOCK, count)) for first in range(0, count, _BLOCK)]


def _filters(offsets: NDArray[np.float64], near: NDArray[np.int64], edge: float, reach: int) -> Samples:
    """``[offsets, near]``: what each sample near a place weighs there, the place being so far behind a sample."""
    away = offsets[:, None] - near[None]
    window = np.i0(_KAISER * np.sqrt(np.maximum(1 - (away / reach) ** 2, 0)))
    weights = np.sinc(edge * away) * window
    weights /= weights.sum(axis=1, keepdims=True)  # a constant stays what it is
    return weights.astype(np.float32)
