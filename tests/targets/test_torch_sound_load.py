"""Whisper folders on the torch target: what their settings say, what they lack, and who brings sounds to them."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tiny_sound import CONTEXT, RATE, asking, build_sound, engine_over, heard, id_of, own, settings, tones, wav, written
from tiny_torch import open_target

import sooner
from commandline import invoke
from sooner.draft.suffix import SuffixDrafter
from sooner.errors import InvalidRequest, UnsupportedModel
from sooner.server.reading import Reader
from sooner.server.schema import ChatBody
from sooner.server.settings import Settings
from sooner.server.switch import DraftSwitch
from sooner.text import Tokenizer

pytestmark = pytest.mark.convert

SOUNDS = [tones("abc"), tones("hgfedc", korean=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sound(tmp_path_factory.mktemp("sound"))


def changed(folder: Path, to: Path, **named: Any) -> Path:
    """``folder`` with other generation settings; None leaves one out."""
    shutil.copytree(folder, to)
    kept = {**settings(), **named}
    (to / "generation_config.json").write_text(json.dumps({k: v for k, v in kept.items() if v is not None}))
    return to


@pytest.mark.filterwarnings("ignore")
def test_first_tokens_follow_the_models_settings(folder: Path, tmp_path: Path) -> None:
    """As transformers reads them: an English model, a fixed language, a fixed task, nothing but a start."""
    alone = {"lang_to_id": None, "task_to_id": None}
    cases: list[dict[str, Any]] = [
        {**alone, "forced_decoder_ids": [[1, id_of("<|notimestamps|>")]], "is_multilingual": False},
        {**alone, "forced_decoder_ids": None, "no_timestamps_token_id": None, "suppress_tokens": None},
        {"forced_decoder_ids": None},
        {"forced_decoder_ids": None, "language": "ko"},
        {"forced_decoder_ids": [[1, id_of("<|ko|>")], [2, id_of("<|translate|>")]]},
        {"task": "translate", "language": "<|en|>", "begin_suppress_tokens": None},
    ]
    for i, named in enumerate(cases):
        path = changed(folder, tmp_path / str(i), **named)
        target = open_target(path, context=CONTEXT)
        engine = engine_over(target, path)
        model, extractor = own(path)
        for sound in SOUNDS[:2]:
            found = engine.generate(asking(sound), max_tokens=16)
            assert [t for t in found.token_ids if t != 256] == written(model, extractor, sound), named
            given = extractor(heard(sound), sampling_rate=RATE, return_tensors="pt")
            want = model._retrieve_init_tokens(given.input_features, 1, model.generation_config, model.config, 100, {})
            assert list(engine.request(asking(sound)).prompt[1:]) == want[0].tolist(), named


def test_folders_that_lack_something_are_refused_at_load(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "preprocessor_config.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"copy preprocessor_config\.json there"):
        open_target(bare, context=CONTEXT)
    with pytest.raises(UnsupportedModel, match="contradicts itself: this model has no language"):
        open_target(changed(folder, tmp_path / "odd", language="xx"), context=CONTEXT)
    with pytest.raises(InvalidRequest, match="strict is for decoder-only models"):
        open_target(folder, context=CONTEXT, strict=True)
    silent = changed(folder, tmp_path / "silent", prev_sot_token_id=None)
    target = open_target(silent, context=CONTEXT)
    with pytest.raises(InvalidRequest, match="takes no text beside a sound"):
        target.hear(SOUNDS[0], before=[97])


def test_what_a_sound_takes_and_what_is_not_written_is_said_at_load(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    target = open_target(folder, context=CONTEXT, log=said.append)
    layers, places, width, floats = 2, 50, 48, 4
    assert target.sound_bytes == layers * 2 * places * width * floats
    assert any("a sound that is written down takes" in line for line in said)
    assert not any("time stamps" in line for line in said)
    open_target(changed(folder, tmp_path / "timed", return_timestamps=True), context=CONTEXT, log=said.append)
    assert any("time stamps, which sooner does not write" in line for line in said)


def test_time_stamps_are_no_text(folder: Path) -> None:
    codec = Tokenizer.load(folder)
    assert codec.decode([97, id_of("<|0.02|>"), 98]) == "ab"
    assert codec.decode([97, id_of("<|notimestamps|>")]) == "a"


def test_the_command_line_writes_a_sound_down(folder: Path, tmp_path: Path) -> None:
    engine = engine_over(open_target(folder, context=CONTEXT), folder)
    path = tmp_path / "talk.wav"
    path.write_bytes(wav(SOUNDS[1]))
    options = ("-m", str(folder), "--backend", "torch", "--device", "cpu", "--audio", str(path), "--json")
    after = asking(SOUNDS[1])
    after[0]["content"].append({"type": "text", "text": "hag cab"})
    for words, piped, message in (
        ((), b"", asking(SOUNDS[1])),
        ((), b"hag cab\n", after),
        (("hag cab",), b"not read", after),
        (("--language", "en", "--task", "translate"), b"\n", asking(SOUNDS[1], language="en", task="translate")),
    ):
        result = invoke("run", *options, *words, stdin=piped, load=sooner.load)
        assert result.code == 0, result.err
        assert json.loads(result.out)["token_ids"] == list(engine.generate(message).token_ids)
    assert engine.generate(after).token_ids != engine.generate(asking(SOUNDS[1])).token_ids


def test_a_server_takes_sounds_in_the_request_alone(folder: Path) -> None:
    engine = engine_over(open_target(folder, context=CONTEXT), folder)
    reader = Reader(engine, DraftSwitch(None, lambda specs: SuffixDrafter()), Settings())

    def asked(part: dict[str, Any], **more: Any) -> Any:
        return reader.chat(ChatBody.model_validate({"messages": [{"role": "user", "content": [part]}], **more}), "")

    data = base64.b64encode(wav(SOUNDS[0])).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    assert asked(part).requests[0].prompt == engine.request(asking(SOUNDS[0])).prompt
    with pytest.raises(ValidationError):
        asked({"type": "audio", "audio": "/etc/hostname"})
    with pytest.raises(InvalidRequest, match="no valid base64"):
        asked({"type": "input_audio", "input_audio": {"data": "@@", "format": "wav"}})
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with pytest.raises(InvalidRequest, match="no function calls"):
        asked(part, tools=[tool])
