"""Whether a model, driven in pieces over our cache, computes what it computes over a whole text by itself.

Knows a model's plain forward and the Target contract. Does not know layouts. This is why no list of supported
models is needed: one whose layers lay out, mask or keep things differently is refused at load, with the reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sooner.errors import CorruptModel, SoonerError, UnsupportedModel, one_line
from sooner.protocols import Target
from sooner.targets.torch.cache import inner
from sooner.types import ROOT, Draft, Logits, Work

__all__ = ["LENGTH", "check_model", "whole_text"]

LENGTH = 24
"""Tokens of the text; one with a window a little longer than a short sliding window is long."""

_LONGEST = 640


def whole_text(model: Any, vocab_size: int, device: Any) -> tuple[tuple[int, ...], Logits]:
    """Some tokens, and the model's own rows of them: no cache, its attention as its code spells it out. Others leave
    out what they do not know, and say nothing (torch's own the caps on Gemma 2's scores). Raises `UnsupportedModel`."""
    text = inner(model).config.get_text_config()
    window = getattr(text, "sliding_window", None) or 0
    length = window + 8 if LENGTH <= window + 8 <= _LONGEST else LENGTH
    length = min(length, int(getattr(text, "max_position_embeddings", None) or length))
    tokens = np.random.default_rng(7).integers(0, vocab_size, length)
    with torch.inference_mode():
        try:
            inner(model).set_attn_implementation("eager")
            rows = model(input_ids=torch.tensor(tokens[None], device=device), use_cache=False).logits[0]
        except Exception as error:
            raise UnsupportedModel(f"the model cannot read a text of {length} tokens: {one_line(error)}") from error
        return tuple(tokens.tolist()), rows.float().cpu().numpy()


def check_model(target: Target, tokens: tuple[int, ...], rows: Logits, tolerance: float) -> None:
    """Raises `UnsupportedModel` unless pieces and a branch of a tree give the ``rows`` of the whole text,
    `CorruptModel` where these are no numbers.

    ``tolerance``: of the spread of a row, what its numbers may be off by in the mean.
    """
    if not np.isfinite(rows).all():
        kind = target.fingerprint.get("precision", "this precision")
        raise CorruptModel(
            f"the model's own rows are no finite numbers in {kind}: its weights are damaged, or too large for it; copy "
            "them again, or try --precision bf16 or f32"
        )
    for name, score in (("in pieces", _in_pieces), ("on a branch of a draft", _on_a_branch)):
        try:
            ours, at = score(target, tokens)
        except SoonerError as error:
            raise UnsupportedModel(f"the model cannot be driven over a cache of our own: {error}") from error
        off = float(np.abs(ours - rows[at]).mean() / max(float(rows[at].std()), 1e-9))
        if not off <= tolerance:
            raise UnsupportedModel(
                f"the model computes other rows when a text is scored {name} (off by {off:.2g} of their spread): its "
                "layers keep or place something that sooner does not know, so drafts would change its text; use another"
            )


def _in_pieces(target: Target, tokens: tuple[int, ...]) -> tuple[Logits, slice]:
    """All but the last eight, one of them, then the rest as a draft."""
    session = target.open(salt="check")
    try:
        n = len(tokens) - 8
        target.score([Work(session, tokens[:n], logits=False)])
        target.score([Work(session, tokens[n : n + 1])])
        rest = tokens[n + 2 :]
        chain = Draft(rest, tuple(range(ROOT, len(rest) - 1)), (1.0,) * len(rest), ("check",) * len(rest))
        return target.score([Work(session, tokens[n + 1 : n + 2], chain)])[0].logits.copy(), slice(n + 1, None)
    finally:
        session.close()


def _on_a_branch(target: Target, tokens: tuple[int, ...]) -> tuple[Logits, slice]:
    """The text as the second branch of a tree, settled, and its last token after that."""
    session = target.open(salt="check branch")
    try:
        n = len(tokens) - 6
        text = tokens[n : len(tokens) - 1]
        strangers = ((text[0] + 1) % target.vocab_size, 1)
        nodes = range(len(strangers), len(strangers) + len(text))
        parents = (ROOT, 0, ROOT, *list(nodes)[:-1])
        count = len(strangers) + len(text)
        draft = Draft((*strangers, *text), parents, (1.0,) * count, ("check",) * count)
        rows = target.score([Work(session, tokens[:n], draft)])[0].logits
        found = [rows[[0, *(node + 1 for node in nodes)]].copy()]
        session.settle(tuple(nodes))
        found.append(target.score([Work(session, tokens[-1:])])[0].logits.copy())
        return np.concatenate(found), slice(n - 1, None)
    finally:
        session.close()
