"""Sounds in chat messages: every form a caller may write, and what is refused."""

from __future__ import annotations

import base64
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sooner.errors import InvalidRequest
from sooner.media import MOST_BYTES, text_of
from sooner.sounds import SoundToken, dictation, sound_part
from test_waves import RATE, TONE, written

FILE = written(TONE, 2)


def asked(*parts: Any) -> Any:
    return dictation([{"role": "user", "content": list(parts)}])


def test_every_form_is_one_sound(tmp_path: Path) -> None:
    path = tmp_path / "a talk.wav"
    path.write_bytes(FILE)
    data = base64.b64encode(FILE).decode()
    forms: list[Any] = [
        *({"type": "audio", "audio": value} for value in (path, str(path), path.as_uri(), FILE)),
        {"type": "audio", "path": str(path)},
        {"type": "audio", "url": f"data:audio/wav;base64,{data}"},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        sound_part(str(path), "audio"),
    ]
    sounds = [asked(form).sound for form in forms]
    assert all(np.array_equal(sound.samples, sounds[0].samples) and sound.rate == RATE for sound in sounds)
    assert np.allclose(sounds[0].samples, TONE, atol=1e-4)


def test_language_task_and_text_are_taken_along() -> None:
    part = {"type": "audio", "audio": FILE, "language": "ko", "task": "translate"}
    found = asked({"type": "text", "text": "Kim,"}, part, {"type": "text", "text": "Lee "})
    assert (found.language, found.task, found.before) == ("ko", "translate", "Kim, Lee")
    assert asked({"type": "audio", "audio": FILE}).before == ""


def test_arrays_are_floats_of_one_channel() -> None:
    array = {"array": TONE, "sampling_rate": 8000}
    assert asked({"type": "audio", "audio": array}).sound.rate == 8000
    assert asked({"type": "audio", "audio": {**array, "array": TONE.tolist()}}).sound.samples.dtype == np.float32


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "audio"}, "without samples"),
        ({"type": "audio", "audio": ""}, "without samples"),
        ({"type": "audio", "audio": 7}, "without samples"),
        ({"type": "input_audio", "input_audio": "AAAA"}, "without samples"),
        ({"type": "input_audio", "input_audio": {"data": "@@", "format": "wav"}}, "no valid base64"),
        ({"type": "audio", "audio": b""}, "file is empty"),
        ({"type": "audio", "audio": "data:audio/wav,abc"}, "data URL must be"),
        ({"type": "audio", "audio": "https://example.org/a.wav"}, "fetches no sounds"),
        ({"type": "audio", "audio": "/no/such/talk.wav"}, "there is no sound"),
        ({"type": "audio", "audio": {"array": TONE}}, "needs its sampling_rate"),
        ({"type": "audio", "audio": {"array": TONE, "sampling_rate": 16000.5}}, "needs its sampling_rate"),
        ({"type": "audio", "audio": {"array": TONE, "sampling_rate": -1}}, "-1 samples a second"),
        ({"type": "audio", "audio": {"array": TONE.reshape(2, -1), "sampling_rate": RATE}}, "one channel"),
        ({"type": "audio", "audio": {"array": [1, 2], "sampling_rate": RATE}}, "must be floats"),
        ({"type": "audio", "audio": {"array": [[1.0], [1.0, 2.0]], "sampling_rate": RATE}}, "must be floats"),
        ({"type": "audio", "audio": {"array": np.empty(0), "sampling_rate": RATE}}, "no samples"),
        ({"type": "audio", "audio": {"array": [float("inf")], "sampling_rate": RATE}}, "no numbers"),
        ({"type": "audio", "audio": FILE, "language": 7}, "language must be a word"),
        ({"type": "audio", "audio": FILE, "task": ""}, "task must be a word"),
        ({"type": "video", "video": "a.mp4"}, "one sound and text"),
        ("a word", "one sound and text"),
    ],
)
def test_what_cannot_be_heard_is_refused_in_a_line(part: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        asked(part)
    assert "\n" not in str(caught.value)


def test_messages_are_one_of_the_users_with_one_sound() -> None:
    part = {"type": "audio", "audio": FILE}
    for messages, said in (
        ([], "one user message"),
        ([{"role": "user", "content": [part]}] * 2, "one user message"),
        ([{"role": "assistant", "content": [part]}], "one user message"),
        ([{"role": "user", "content": "write it down"}], "there is no sound"),
        ([{"role": "user", "content": None}], "one sound and text"),
        ([{"role": "user", "content": [part, part]}], "2 sounds"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            dictation(messages)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.wav"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(InvalidRequest, match="more than 32 MB"):
        sound_part(str(path), "audio")


def test_a_token_is_a_number_that_is_no_text() -> None:
    token = SoundToken(70, heard := object())
    assert (token, hash(token), token.heard) == (70, hash(70), heard)
    assert text_of([1, token, 70]) == [1, 70]
    assert copy.copy([token])[0] is token
