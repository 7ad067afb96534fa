"""WAV files of all kinds read into samples, and resampling, which keeps what can be heard and mirrors nothing."""

from __future__ import annotations

import io
import struct
import sys
import types
import wave
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sooner.errors import InvalidRequest
from sooner.waves import Sound, read_sound, resample

RATE = 16000
TONE = np.sin(np.arange(400) * 0.3) * 0.5


def written(samples: Any, width: int, channels: int = 1, rate: int = RATE) -> bytes:
    """A file by the standard library's own writer; ``samples`` in [-1, 1], ``[n * channels]``."""
    most = 2 ** (8 * width - 1)
    whole = np.clip(np.round(np.asarray(samples) * most), -most, most - 1).astype(np.int64)
    if width == 1:
        body = (whole + 128).astype("u1").tobytes()
    else:
        body = b"".join(int(value).to_bytes(width, "little", signed=True) for value in whole)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.setframerate(rate)
        out.writeframes(body)
    return file.getvalue()


def chunked(form: bytes, body: bytes, *, size: int | None = None, before: bytes = b"") -> bytes:
    head = b"WAVE" + before + struct.pack("<4sI", b"fmt ", len(form)) + form
    data = struct.pack("<4sI", b"data", len(body) if size is None else size) + body
    return b"RIFF" + struct.pack("<I", len(head) + len(data)) + head + data


def form(kind: int, bits: int, channels: int = 1, rate: int = RATE) -> bytes:
    frame = channels * bits // 8
    return struct.pack("<HHIIHH", kind, channels, rate, rate * frame, frame, bits)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_whole_numbers_of_every_width_are_read(width: int) -> None:
    found = read_sound(written(TONE, width), "x")
    assert found.rate == RATE
    assert found.samples.dtype == np.float32
    assert np.abs(found.samples - TONE).max() <= 2.0 ** (1 - 8 * width) + 1e-7


def test_channels_are_mixed() -> None:
    both = np.stack([TONE, -TONE * 0.5], axis=1).ravel()
    assert np.allclose(read_sound(written(both, 2, channels=2), "x").samples, TONE * 0.25, atol=1e-4)


@pytest.mark.parametrize(("kind", "dtype"), [(3, "<f4"), (3, "<f8")])
def test_floats_and_extended_headers_are_read(kind: int, dtype: str) -> None:
    body, bits = TONE.astype(dtype).tobytes(), np.dtype(dtype).itemsize * 8
    assert np.allclose(read_sound(chunked(form(kind, bits), body), "x").samples, TONE, atol=1e-6)
    extended = form(0xFFFE, bits) + struct.pack("<HHIH14x", 22, bits, 0, kind)
    noted = struct.pack("<4sI", b"LIST", 3) + b"abc\0"
    assert np.allclose(read_sound(chunked(extended, body, before=noted), "x").samples, TONE, atol=1e-6)
    streamed = chunked(form(kind, bits), body, size=0xFFFFFFFF)  # its writer did not know how long it would be
    assert np.allclose(read_sound(streamed, "x").samples, TONE, atol=1e-6)


def refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        read_sound(data, "here")
    assert caught.value.param == "here"
    assert "\n" not in str(caught.value)


def test_what_is_no_sound_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    good = written(TONE, 2)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    refused(b"", "the sound file is empty")
    refused(b"no sound", "pip install soundfile")
    refused(b"fLaC" + bytes(100), "pip install soundfile")
    refused(chunked(form(7, 8), bytes(100)), "pip install soundfile")  # of telephones
    refused(good[:-7], "ends 7 bytes too early")
    refused(good[:30], "too early")
    refused(good[:36], "it has no samples")
    refused(b"RIFF\0\0\0\0WAVE", "does not say how it is laid out")
    refused(chunked(form(1, 16)[:10], bytes(10)), "header is cut off")
    refused(written([], 2), "the sound has no samples")
    refused(chunked(form(1, 16, channels=0), bytes(10)), "0 channels")
    refused(chunked(form(1, 16, rate=0), bytes(10)), "0 times a second")
    refused(chunked(form(1, 16, rate=10**9), bytes(10)), "1000000000 samples a second and sooner takes")
    refused(chunked(form(3, 32), np.array([np.nan], "<f4").tobytes()), "no numbers")


@given(st.binary(max_size=80), st.integers(0, 60))
def test_damaged_files_are_refused_or_read_and_nothing_else_happens(noise: bytes, at: int) -> None:
    good = written(TONE[:20], 2)
    data = good[:at] + noise + good[at + len(noise) :]
    with suppress(InvalidRequest):
        assert np.isfinite(read_sound(data, "x").samples).all()


class File:
    """What soundfile opens, as far as it is asked."""

    samplerate = 8000

    def __init__(self, data: io.BytesIO) -> None:
        if data.getvalue() == b"damaged":
            raise RuntimeError("Format not\nrecognised")
        self.frames = 10**9 if data.getvalue() == b"a day" else 3
        self.channels = 10**9 if data.getvalue() == b"an orchestra" else 2

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, **how: Any) -> Any:
        assert how == {"dtype": "float32", "always_2d": True}
        return np.array([[0.5, 0.1], [0.2, 0.2], [0, 0.4]], np.float32)


def test_other_files_are_left_to_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("soundfile")
    module.SoundFile = File  # type: ignore[attr-defined]  # a stand-in: it is not installed here
    monkeypatch.setitem(sys.modules, "soundfile", module)
    found = read_sound(b"some flac", "x")
    assert (found.rate, found.samples.tolist()) == (8000, pytest.approx([0.3, 0.2, 0.2]))
    refused(b"damaged", "Format not recognised")
    refused(b"a day", "has 125000 seconds")
    refused(b"an orchestra", "1000000000 channels of 8000")


def tone(pitch: float, rate: int) -> Sound:
    return Sound(np.sin(2 * np.pi * pitch * np.arange(rate // 2) / rate).astype(np.float32), rate)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 44101])
def test_what_can_be_heard_is_the_same_at_another_rate(rate: int) -> None:
    for pitch in (200.0, 1000.0, 3000.0):
        made = resample(tone(pitch, rate), RATE)
        assert len(made) == -(-(rate // 2) * RATE // rate)
        want = tone(pitch, RATE).samples[: len(made)]
        assert np.abs(made - want[: len(made)])[300:-300].max() < 1e-4


@pytest.mark.parametrize("rate", [44100, 48000])
def test_what_cannot_is_filtered_out_and_not_mirrored(rate: int) -> None:
    for pitch in (9000.0, 12000.0, 15000.0):
        assert np.abs(resample(tone(pitch, rate), RATE))[300:-300].max() < 1e-3
        every = tone(pitch, rate).samples[:: round(rate / RATE)]  # the control: taking every third sample mirrors it
        assert np.abs(every).max() > 0.5


def test_the_rate_that_is_there_costs_nothing() -> None:
    sound = tone(500.0, RATE)
    assert resample(sound, RATE) is sound.samples
    assert np.allclose(resample(Sound(np.ones(4000, np.float32), 44100), RATE)[300:-300], 1, atol=1e-5)
