"""Opening models that look at pictures: families, older folders, and those that are left with text alone, and why."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_sight import CONTEXT, asking, build_sight, id_of, opened_engine, png
from tiny_torch import open_target

import sooner
from sooner.chat import ChatTemplate
from sooner.errors import InvalidRequest
from sooner.prompt import demand_pictures
from sooner.protocols import Seeing
from sooner.store import resolve_folder

pytestmark = pytest.mark.convert
pytest.importorskip("torch", exc_type=ImportError)  # the plain suite collects this file, too

from sooner.targets.torch import from_files, sight  # noqa: E402  # torch first
from sooner.targets.torch.eyes import open_processor  # noqa: E402  # torch first


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sight("llava", tmp_path_factory.mktemp("llava"))


@pytest.mark.parametrize(
    ("family", "reason"),
    [("qwen3_vl", "computes other rows"), ("gemma3", "cannot look at a picture")],
)
def test_a_family_whose_pictures_cannot_be_had_reads_text_and_says_why(
    family: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Qwen3-VL adds rows in later layers, Gemma 3's pictures attend to themselves both ways."""
    lines: list[str] = []
    target = open_target(build_sight(family, tmp_path), context=CONTEXT, log=lines.append)
    assert not isinstance(target, Seeing)
    assert any(line.startswith("images are refused: ") and reason in line for line in lines)
    with pytest.raises(InvalidRequest, match=reason) as refused:
        demand_pictures(target, "messages")
    assert "\n" not in str(refused.value)
    answer = opened_engine(tmp_path, target).generate([5, 6, 7], max_tokens=4, ignore_eos=True)
    assert len(answer.token_ids) == 4


def test_smolvlm_wants_a_package_for_films_and_looks_at_pictures_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_sight("smolvlm", tmp_path)
    try:
        from transformers.models.smolvlm import processing_smolvlm as module
    except ModuleNotFoundError:  # transformers 4.57, whose processor wants torchvision
        assert "torchvision" in open_target(folder, context=CONTEXT).blind
        return
    monkeypatch.setattr(module, "num2words", None)
    blind = open_target(folder, context=CONTEXT)
    assert not isinstance(blind, Seeing)
    assert "pip install num2words" in blind.blind
    monkeypatch.setattr(module, "num2words", object())  # nothing of it is used for pictures
    target = open_target(folder, context=CONTEXT)
    assert isinstance(target, Seeing)
    vocab_size = opened_engine(folder, target).target.vocab_size
    ids = opened_engine(folder, target).request(asking(png(1))).prompt
    given = open_processor(folder)(text=["<image>"], images=[_image(png(1))], add_special_tokens=False)["input_ids"][0]
    marks = [id_of("<image>") if token >= vocab_size else token for token in ids]
    assert given.count(id_of("<image>")) == 20  # four tiles and the whole
    assert any(marks[i : i + len(given)] == given for i in range(len(marks)))


def _image(data: bytes) -> Any:
    from sooner.targets.torch.eyes import _image

    return _image(data)


def test_a_model_that_misplaces_what_follows_a_picture_is_not_let_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the check at load."""
    monkeypatch.setattr(sight, "_shift", lambda session, held: 0)
    plan = from_files._plan
    monkeypatch.setattr(from_files, "_plan", lambda *given, **how: replace(plan(*given, **how), token_bytes=1))
    target = open_target(build_sight("qwen2_vl", tmp_path), context=CONTEXT)
    assert "computes other rows" in target.blind
    assert target.plan.token_bytes == target.runner.kv.token_bytes > 1


def test_in_fixed_shapes_it_reads_text(llava: Path) -> None:
    target = open_target(llava, context=64, strict=True)
    assert not isinstance(target, Seeing)
    with pytest.raises(InvalidRequest, match="--strict"):
        demand_pictures(target, "image")
    answer = opened_engine(llava, target).generate([5, 6, 7], max_tokens=4, ignore_eos=True)
    assert len(answer.token_ids) == 4


LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{# Render all images first #}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def test_an_older_folder_is_read(llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLaVA 1.5's: the template in ``chat_template.json``, and of the language model only what is not Llama's own."""
    monkeypatch.setenv("SOONER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "llava"
    folder.mkdir()
    for file in llava.iterdir():
        if file.name not in ("config.json", "chat_template.jinja", "generation_config.json"):
            (folder / file.name).symlink_to(file)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": LLAVA_TEMPLATE}))
    config = json.loads((llava / "config.json").read_text())
    from transformers import LlamaConfig

    usual = LlamaConfig().to_dict()
    words = config["text_config"]
    kept = {key: value for key, value in words.items() if key == "model_type" or usual.get(key) != value}
    assert "tie_word_embeddings" not in kept
    del kept["max_position_embeddings"]  # 2048 is Llama's own
    (folder / "config.json").write_text(json.dumps({**config, "text_config": kept}))
    files = resolve_folder(str(folder))
    assert files.context == 2048
    assert files.chat_template == LLAVA_TEMPLATE
    engine = sooner.load(str(folder), backend="torch", device="cpu", draft=None, pool_tokens=512)
    answer = engine.generate(asking(png(1)), max_tokens=4, ignore_eos=True)
    assert answer.usage.prompt_tokens > 16 + len("USER: ")
    other = engine.generate(asking(png(2)), max_tokens=4, ignore_eos=True, logprobs=2)
    assert other.logprobs != engine.generate(asking(png(1)), max_tokens=4, ignore_eos=True, logprobs=2).logprobs


QWEN_TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}"
    "<|im_end|>\n{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in "
    "content or 'image_url' in content %}{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}"
    "Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content "
    "%}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "<|im_start|>assistant\n{% endif %}"
)
SMOL_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == "
    "'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}"
    "{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (LLAVA_TEMPLATE, "USER: <image>\nwhat? ASSISTANT: a cat USER: why? ASSISTANT:"),
        (SMOL_TEMPLATE, "<|im_start|>User:<image>what?<end_of_utterance>\nAssistant: a cat<end_of_utterance>\n"),
        (QWEN_TEMPLATE, "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>what?<|im_end|>\n"),
    ],
)
def test_templates_that_families_come_with_are_rendered(template: str, wanted: str) -> None:
    """As they stand in the models' folders; a turn of text alone goes through them, too."""
    shown = [{"type": "image"}, {"type": "text", "text": "what?"}]
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": shown},
        {"role": "assistant", "content": "a cat"},
        {"role": "user", "content": "why?"},
    ]
    assert wanted in ChatTemplate(template).render(turns, pictures=True)


@pytest.mark.parametrize("files", [0, 1])
def test_a_processor_that_is_missing_or_damaged_is_a_warning_where_nobody_listens(
    files: int, llava: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for file in llava.iterdir():
        if "processor" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    if files:
        (tmp_path / "processor_config.json").write_text("{")
    with caplog.at_level(logging.WARNING, "sooner"):
        assert not isinstance(open_target(tmp_path, context=64), Seeing)
    assert "images are refused: the processor in" in caplog.text
