"""Tiny vision-language models of some families as Hugging Face folders: weights, processor, tokenizer, template."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

CONTEXT = 512
_MARKS = [
    *("<s>", "</s>", "<pad>", "<image>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<start_of_image>", "<end_of_image>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
]
V = 256 + len(_MARKS)
_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": V,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}
_SEEN = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% for c in m.content %}{% if c.type == 'image' %}MARK{% else %}{{ c.text }}"
    "{% endif %}{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
_QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
SEEING = {"llava": "<image>", "qwen2_vl": _QWEN, "idefics3": "<image>", "smolvlm": "<image>"}
"""Families that look at pictures here, and what their templates write for one."""

BLIND = {"gemma3": "<start_of_image>", "qwen3_vl": _QWEN}
"""Families whose rows behind a picture are not to be had over our cache."""

FAMILIES = {**SEEING, **BLIND}


def id_of(mark: str) -> int:
    """The token of a mark."""
    return 256 + _MARKS.index(mark)


def png(seed: int, width: int = 40, height: int = 24) -> bytes:
    """A picture file."""
    from PIL import Image

    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def letters(codec: Any) -> list[int]:
    """Tokens of a few letters: texts of these alone are tokenised as they were written."""
    return [int(token) for token in codec.encode("abc", bos=False)]


def asking(*pictures: Any, text: str = "what is it it is it") -> list[dict[str, Any]]:
    """A user's message that shows ``pictures``."""
    parts = [{"type": "image", "image": picture} for picture in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def opened_engine(folder: Path, target: Any, **options: Any) -> Any:
    """An engine over ``target``, whose cache is empty, with the tokenizer and template of ``folder``."""
    from sooner.chat import ChatTemplate
    from sooner.engine import Engine
    from sooner.prompt import PictureTemplate
    from sooner.text import Tokenizer

    target.slots.purge()
    codec = Tokenizer.load(folder)
    template = PictureTemplate(ChatTemplate((folder / "chat_template.jinja").read_text()), target, codec)
    return Engine(target, codec, template=template, name="sight", **options)


def build_words(sight: Path, folder: Path) -> Path:
    """The language model of the model in ``sight``, and its tokenizer, as a model for text alone."""
    import transformers

    whole = transformers.AutoModelForImageTextToText.from_pretrained(sight)
    config = whole.config.get_text_config()
    if config.model_type != "llama":  # Qwen2-VL's, which places text as Qwen2 does
        shape = {key: getattr(config, key) for key in _TEXT}
        config = transformers.Qwen2Config(**shape)
    model = transformers.AutoModelForCausalLM.from_config(config)
    words = getattr(whole.model, "text_model", None) or whole.get_decoder()  # 4.57 calls all of Idefics 3 its decoder
    model.model.load_state_dict(words.state_dict())
    model.lm_head.load_state_dict(whole.lm_head.state_dict())
    model.save_pretrained(folder)
    _save_tokenizer("llava", folder)
    return folder


def build_sight(family: str, folder: Path, seed: int = 0) -> Path:
    """A model of ``family`` in ``folder``, with weights so wide that its rows are sharp."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model = transformers.AutoModelForImageTextToText.from_config(_config(family))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.3 / max(float(parameter.std()), 1e-6))
    model.save_pretrained(folder)
    _save_tokenizer(family, folder)
    _images(family, folder)
    (folder / "chat_template.jinja").write_text(_TEMPLATE.replace("MARK", FAMILIES[family]))
    return folder


def _config(family: str) -> Any:
    import transformers

    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text: Any = {**_TEXT, "rope_parameters": rope, "rope_scaling": rope}
    if family == "llava":
        seen = transformers.CLIPVisionConfig(**_SEEN, image_size=32)
        llama = transformers.LlamaConfig(**_TEXT)
        return transformers.LlavaConfig(vision_config=seen, text_config=llama, image_token_index=id_of("<image>"))
    if family in ("idefics3", "smolvlm"):
        kind = {"idefics3": transformers.Idefics3Config, "smolvlm": transformers.SmolVLMConfig}[family]
        seen = {**_SEEN, "image_size": 32}
        llama = {**_TEXT, "model_type": "llama"}
        return kind(vision_config=seen, text_config=llama, image_token_id=id_of("<image>"), scale_factor=2)
    if family == "gemma3":
        seen = {**_SEEN, "image_size": 32}
        words = {**_TEXT, "head_dim": 8, "sliding_window": 64}
        return transformers.Gemma3Config(
            vision_config=seen, text_config=words, mm_tokens_per_image=4, image_token_index=id_of("<image>")
        )
    marks = {f"{name}_token_id": id_of(f"<|{name}|>") for name in ("vision_start", "vision_end")}
    marks |= {f"{name}_token_id": id_of(f"<|{name}_pad|>") for name in ("image", "video")}
    seen = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4}
    if family == "qwen3_vl":
        seen |= {"intermediate_size": 64, "out_hidden_size": 32, "deepstack_visual_indexes": [0, 1]}
        return transformers.Qwen3VLConfig(text_config={**text, "head_dim": 8}, vision_config=seen, **marks)
    return transformers.Qwen2VLConfig(
        text_config=text, vision_config={**seen, "embed_dim": 32, "mlp_ratio": 2}, **marks
    )


_GEMMA = {"image_token": "<image>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}


def _save_tokenizer(family: str, folder: Path) -> None:
    """Under the name of the class that transformers 4.57 wants of Qwen's."""
    import json

    _tokenizer(family).save_pretrained(folder)
    if family.startswith("qwen"):
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "tokenizer_class": "Qwen2Tokenizer"}))


def _tokenizer(family: str) -> Any:
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(_MARKS)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens=_GEMMA if family == "gemma3" else {},
    )


_PROCESSORS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llava": (
        "CLIPImageProcessor",
        {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
        {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    "qwen2_vl": (
        "Qwen2VLImageProcessor",
        {
            **{"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 1024}},
            **{"min_pixels": 64, "max_pixels": 1024},  # the same, as 4.57 reads it
        },
        {},
    ),
    "idefics3": (
        "Idefics3ImageProcessor",
        {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}},
        {"image_seq_len": 4},
    ),
    "gemma3": ("Gemma3ImageProcessor", {"size": {"height": 32, "width": 32}}, {"image_seq_length": 4}),
}
_PROCESSORS["smolvlm"] = ("SmolVLMImageProcessor", *_PROCESSORS["idefics3"][1:])
_PROCESSORS["qwen3_vl"] = _PROCESSORS["qwen2_vl"]
_CLASSES = {"llava": "Llava", "qwen2_vl": "Qwen2VL", "idefics3": "Idefics3", "smolvlm": "SmolVLM", "gemma3": "Gemma3"}
_CLASSES["qwen3_vl"] = "Qwen3VL"


def _images(family: str, folder: Path) -> None:
    """The processor's files, as its own ``save_pretrained`` writes them."""
    import json

    name, images, own = _PROCESSORS[family]
    processor = f"{_CLASSES[family]}Processor"
    (folder / "preprocessor_config.json").write_text(
        json.dumps({**images, "image_processor_type": name, "processor_class": processor})
    )
    (folder / "processor_config.json").write_text(json.dumps({**own, "processor_class": processor}))
