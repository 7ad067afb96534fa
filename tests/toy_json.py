"""A toy tokenizer whose tokens spell JSON in many ways, some across its punctuation, and an engine on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sooner.control.fixed import FixedController
from sooner.engine import Engine
from sooner.protocols import Drafter
from sooner.targets.toy import ToyTarget
from sooner.text import Detokenizer
from toy import FlickerController

PIECES: tuple[bytes, ...] = (
    b"",  # end of text
    b"",  # a second one
    b"",  # a control token that ends nothing
    *(bytes([c]) for c in b'{}[]":, abcdefnrtulsx0123456789.-\\\n'),
    *(bytes([b]) for b in "é안".encode()),
    *(b'{"', b'": "', b'": ', b'", "', b'"}', b"ab", b"abc", b"cd", b"tr", b"ue", b"null", b"12", b", "),
    "안".encode(),
)
V = len(PIECES) + 3
"""The rows are longer than the vocabulary, as those of padded models are."""


class JsonCodec:
    """Greedy, so that a text has one canonical spelling, and many others."""

    eos_ids = frozenset({0, 1})
    vocab_size = len(PIECES)

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        data, ids = text.encode(), []
        while data:
            best = max((p for p in PIECES if p and data.startswith(p)), key=len, default=None)
            if best is None:
                data = data[1:]
                continue
            ids.append(PIECES.index(best))
            data = data[len(best) :]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        return PIECES[id] if 0 <= id < len(PIECES) else b""

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.token_bytes)


CODEC = JsonCodec()


def json_engine(drafter: Drafter | None = None, *, budget: int = 8, flicker: bool = False, **options: Any) -> Engine:
    names = ("seed", "context", "pool_tokens", "row_dependent", "sharpness")
    target = ToyTarget(V, **{name: options.pop(name) for name in names if name in options})
    controller = FlickerController(budget) if flicker else FixedController(budget)
    return Engine(target, CODEC, drafter=drafter, controller=controller, **options)
