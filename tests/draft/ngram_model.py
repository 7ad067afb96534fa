"""Small models that are learned in a moment: counts over a text's tokens, with a tokenizer trained on the text."""

from __future__ import annotations

from collections import Counter, defaultdict
from pydoc_data.topics import topics

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from sooner.targets.toy import ToyTarget
from sooner.text import Tokenizer
from sooner.types import Logits

END = "<|end|>"


def prose() -> list[str]:
    """Paragraphs of English that come with Python: its language reference."""
    parts = [" ".join(part.split()) for name in sorted(topics) for part in topics[name].split("\n\n")]
    return [part for part in parts if len(part) > 120 and part[0].isupper()][:200]


def byte_level(texts: list[str], size: int) -> Tokenizer:
    """A byte-level BPE of ``size`` tokens."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END, "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return Tokenizer(core, eos_ids=[0], eos=END)


def sentence_piece(texts: list[str], size: int) -> Tokenizer:
    """A SentencePiece-like BPE with byte fallback, a space in front of every text, and a BOS token."""
    core = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    core.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False))
    core.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer(core, eos_ids=[2], bos="<s>", eos="</s>")


class NgramModel(ToyTarget):
    """The law of the next token by interpolated counts of what followed the last tokens in ``texts``."""

    def __init__(self, codec: Tokenizer, texts: list[str], order: int, *, context: int = 512) -> None:
        super().__init__(codec.vocab_size, order=order, context=context)
        self._followers: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for text in texts:
            ids = [*codec.encode(text), min(codec.eos_ids)]
            for at, token in enumerate(ids):
                for length in range(min(order, at) + 1):
                    self._followers[tuple(ids[at - length : at])][token] += 1

    def _make_row(self, context: tuple[int, ...]) -> Logits:
        p = np.full(self.vocab_size, 1e-6)
        for length in range(len(context) + 1):
            followers = self._followers.get(context[len(context) - length :])
            if followers is None:
                break
            total = sum(followers.values())
            p *= 1.0 / (1.0 + total)
            for token, count in followers.items():
                p[token] += count / (1.0 + total)
        row: Logits = np.log(p / p.sum()).astype(np.float32)
        return row
