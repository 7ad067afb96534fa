"""Tiny vision-language models of two families as Hugging Face folders: weights, processor, tokenizer, template."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

CONTEXT = 512
_MARKS = ["<s>", "</s>", "<pad>", "<image>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
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
FAMILIES = {"llava": "<image>", "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>"}


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
    words = _tokenizer()
    words.save_pretrained(folder)
    _images(family, folder)
    (folder / "chat_template.jinja").write_text(_TEMPLATE.replace("MARK", FAMILIES[family]))
    return folder


def _config(family: str) -> Any:
    import transformers

    if family == "llava":
        text = transformers.LlamaConfig(**_TEXT)
        seen = transformers.CLIPVisionConfig(**_SEEN, image_size=32)
        return transformers.LlavaConfig(vision_config=seen, text_config=text, image_token_index=id_of("<image>"))
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    seen = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}
    marks = {f"{name}_token_id": id_of(f"<|{name}|>") for name in ("vision_start", "vision_end")}
    return transformers.Qwen2VLConfig(
        text_config={**_TEXT, "rope_parameters": rope, "rope_scaling": rope},
        vision_config=seen,
        image_token_id=id_of("<|image_pad|>"),
        video_token_id=id_of("<|video_pad|>"),
        **marks,
    )


def _tokenizer() -> Any:
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(_MARKS)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def _images(family: str, folder: Path) -> None:
    """The processor's files, as its own ``save_pretrained`` writes them."""
    import json

    kinds: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "llava": (
            "CLIPImageProcessor",
            {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
            {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        ),
        "qwen2_vl": (
            "Qwen2VLImageProcessor",
            {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 1024}},
            {},
        ),
    }
    name, images, own = kinds[family]
    processor = {"llava": "LlavaProcessor", "qwen2_vl": "Qwen2VLProcessor"}[family]
    (folder / "preprocessor_config.json").write_text(
        json.dumps({**images, "image_processor_type": name, "processor_class": processor})
    )
    (folder / "processor_config.json").write_text(json.dumps({**own, "processor_class": processor}))
