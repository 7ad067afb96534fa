"""Builds a ``tokenizer.json`` (Hugging Face tokenizers) from a GGUF file's metadata, without transformers.

Knows the ``tokenizer.ggml.*`` keys and what each ``tokenizer.ggml.pre`` means. Does not know weights or the cache.
The split patterns are those of the models' own tokenizer.json files and of llama.cpp (src/llama-vocab.cpp), the
reference reader of the format; a ``pre`` that is not in the table is refused, since a wrong split changes every text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sooner.errors import CorruptModel, UnsupportedModel
from sooner.store.gguf_file import Gguf

__all__ = ["PRE_TOKENIZERS", "GgufVocabulary", "tokenizer_json", "vocabulary"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split before byte-pair merging: each pattern splits the pieces the one before it left.

    ``whole_words``: a piece that is a token as it stands is that token, whatever the merges say. ``nfc``: text is
    put into Unicode normal form C first. ``bos``: whether a BOS is prepended where the file does not say.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    nfc: bool = False
    bos: bool = False


_digits_then_gpt2 = PreTokenizer((r"\p{N}", _GPT2))
_llama3 = PreTokenizer((_LLAMA3,), whole_words=True, bos=True)
_gpt2 = PreTokenizer((_GPT2,))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "default": PreTokenizer(_DEFAULT),
        "gpt-2": _gpt2,
        "smollm": _digits_then_gpt2,
        "starcoder": _digits_then_gpt2,
        "llama-bpe": _llama3,
        "llama3": _llama3,
        "llama-v3": _llama3,
        "smaug-bpe": PreTokenizer((_LLAMA3,)),
        "qwen2": PreTokenizer((_QWEN2,), nfc=True),
        # The original's normal form is not recorded in the file; llama.cpp applies none.
        "deepseek-r1-qwen": PreTokenizer((_QWEN2,)),
        "tekken": PreTokenizer((_TEKKEN,), whole_words=True, bos=True),
    }
)
"""``tokenizer.ggml.pre`` -> how to split. A file without the key is read as "default", like llama.cpp does."""


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokenizer's metadata, checked: one type (``NORMAL`` ... ``BYTE``) per token, ids inside the map."""

    model: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    add_bos: bool
    eos_ids: tuple[int, ...]


# Control tokens that close a turn or a text, by the names models give them (llama.cpp's end-of-generation list).
_END_TOKENS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>"),
        *("<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "</s>"),
        "<｜end▁of▁sentence｜>",
    )
)


def vocabulary(gguf: Gguf) -> GgufVocabulary:
    """The vocabulary of ``gguf``. Raises `UnsupportedModel` for a tokenizer kind or ``pre`` sooner does not know."""
    model = gguf.need("tokenizer.ggml.model", str)
    if model not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"{gguf.path.name} has a {model!r} tokenizer; sooner reads gpt2 (byte-level BPE) and llama (SentencePiece)"
        )
    tokens = tuple(gguf.need("tokenizer.ggml.tokens", list))
    types = tuple(gguf.get("tokenizer.ggml.token_type", list, [NORMAL] * len(tokens)))
    if not tokens or len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise CorruptModel(f"{gguf.path.name} has a damaged token list; download it again")
    bos, eos = _id(gguf, "bos", len(tokens)), _id(gguf, "eos", len(tokens))
    ends = {eos, _id(gguf, "eot", len(tokens)), _id(gguf, "eom", len(tokens))}
    ends |= {i for i, t in enumerate(types) if t == CONTROL and tokens[i] in _END_TOKENS}
    by_default = model == "llama" or _pre(gguf).bos
    return GgufVocabulary(
        model=model,
        tokens=tokens,
        types=types,
        bos_id=bos,
        eos_id=eos,
        unknown_id=_id(gguf, "unknown", len(tokens)),
        add_bos=bos is not None and gguf.get("tokenizer.ggml.add_bos_token", bool, by_default),
        eos_ids=tuple(sorted(i for i in ends if i is not None)),
    )


def tokenizer_json(gguf: Gguf, words: GgufVocabulary) -> dict[str, Any]:
    """The document of a ``tokenizer.json`` that splits, merges and decodes as the model's own tokenizer does."""
    parts = _byte_level(gguf, words) if words.model == "gpt2" else _sentence_piece(gguf, words)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(i, words.tokens[i], special=kind in (CONTROL, UNKNOWN))
            for i, kind in enumerate(words.types)
            if kind in (CONTROL, UNKNOWN, USER_DEFINED)
        ],
        "post_processor": _prepend_bos(words),
        **parts,
    }


def _byte_level(gguf: Gguf, words: GgufVocabulary) -> dict[str, Any]:
    pre = _pre(gguf)
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in pre.patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    merges = [_merge(gguf, merge) for merge in gguf.need("tokenizer.ggml.merges", list)]
    return {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
        "decoder": level,
        "model": _bpe(words, merges, ignore_merges=pre.whole_words),
    }


def _sentence_piece(gguf: Gguf, words: GgufVocabulary) -> dict[str, Any]:
    scores = gguf.need("tokenizer.ggml.scores", list)
    if len(scores) != len(words.tokens):
        raise CorruptModel(f"{gguf.path.name} has a damaged score list; download it again")
    prefix = gguf.get("tokenizer.ggml.add_space_prefix", bool, True)
    spaces: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, spaces]} if prefix else spaces,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(words, _score_merges(words, scores), byte_fallback=True, fuse_unk=True),
    }


def _score_merges(words: GgufVocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, the best-scored result first: SentencePiece's order of merging."""
    pieces = {t: i for i, t in enumerate(words.tokens) if words.types[i] in (NORMAL, USER_DEFINED, UNUSED)}
    found = []
    for token, index in pieces.items():
        if words.types[index] == NORMAL:
            for cut in range(1, len(token)):
                left, right = pieces.get(token[:cut]), pieces.get(token[cut:])
                if left is not None and right is not None:
                    found.append((-scores[index], index, left, right))
    found.sort()
    return [(words.tokens[left], words.tokens[right]) for _, _, left, right in found]


def _bpe(words: GgufVocabulary, merges: list[tuple[str, str]], **options: bool) -> dict[str, Any]:
    unknown = words.unknown_id if words.model == "llama" else None
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if unknown is None else words.tokens[unknown],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": {token: i for i, token in enumerate(words.tokens)},
        "merges": merges,
    }


def _prepend_bos(words: GgufVocabulary) -> dict[str, Any] | None:
    if not words.add_bos or words.bos_id is None:
        return None
    bos = words.tokens[words.bos_id]
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, sequence],
        "pair": [{"SpecialToken": {"id": bos, "type_id": 0}}, sequence, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [words.bos_id], "tokens": [bos]}},
    }


def _added(index: int, token: str, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": token, **flags, "special": special}


def _merge(gguf: Gguf, merge: Any) -> tuple[str, str]:
    # A token may itself start with a space, so the separator is the first space after the first character.
    cut = merge.find(" ", 1) if isinstance(merge, str) else -1
    if cut < 0:
        raise CorruptModel(f"{gguf.path.name} has a damaged merge list ({merge!r}); download it again")
    return merge[:cut], merge[cut + 1 :]


def _pre(gguf: Gguf) -> PreTokenizer:
    name = gguf.get("tokenizer.ggml.pre", str, "default")
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{gguf.path.name} splits text the {name!r} way (tokenizer.ggml.pre), which sooner does not know; "
            "use the model's Hugging Face folder instead"
        )
    return PRE_TOKENIZERS[name]


def _id(gguf: Gguf, name: str, size: int) -> int | None:
    value = gguf.get(f"tokenizer.ggml.{name}_token_id", int)
    if value is not None and not 0 <= value < size:
        raise CorruptModel(f"{gguf.path.name} is damaged: its {name} token {value} is outside the vocabulary")
    return None if value is None else int(value)
