"""A target that looks at pictures: in a pass, their tokens become the rows their encoder made, at their own positions.

Knows which tokens of a pass are a picture's. Does not know how pictures are encoded (`eyes`), nor messages.

A picture's tokens are ids beyond the vocabulary, equal for equal pictures only: engine, batch and cached prefixes need
no case for them, and drafters, which are shown the text without them, cannot draft them.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sooner.errors import ContextOverflow, InvalidRequest, MissingExtra, SoonerError, UnsupportedModel, one_line
from sooner.pictures import PictureToken
from sooner.protocols import Session
from sooner.targets.torch.adopt import adopt, tolerance
from sooner.targets.torch.cache import Port, inner
from sooner.targets.torch.check import check_model
from sooner.targets.torch.eyes import Eyes, open_processor
from sooner.targets.torch.memory import MemoryPlan
from sooner.targets.torch.runner import Held, Runner, Scored
from sooner.targets.torch.target import TorchTarget
from sooner.types import Logits, Work

__all__ = ["SightPort", "SightRunner", "SightTarget", "adopt_sight"]

Shown = tuple[Any, list[int], Logits]
"""A picture, a text behind it, and the model's own rows of that text."""


class SightPort(Port):
    """A model whose language model is given rows. ``pictures``: which rows of the coming pass are a picture's."""

    pictures: Sequence[tuple[int, PictureToken]] = ()

    def connect(self) -> None:
        """As `Port.connect`; what encodes pictures keeps attention of its own."""
        super().connect()
        others = [name for name in self.model.config.sub_configs if name != "text_config"]
        own = self.model.config._attn_implementation
        self.model.set_attn_implementation({"": own, "text_config": own, **dict.fromkeys(others, "sdpa")})

    def inputs(self, tokens: Any, positions: Any) -> dict[str, Any]:
        """As `Port.inputs`. ``positions`` are ``[3, rows]`` for models that place pictures in three dimensions."""
        embeds = self.model.get_input_embeddings()(tokens)
        if self.pictures:
            rows = torch.stack([_own_row(token) for _, token in self.pictures])
            embeds[[row for row, _ in self.pictures]] = rows.to(embeds.dtype)
        return {"inputs_embeds": embeds[None], "position_ids": positions[..., None, :]}


class SightRunner(Runner):
    """Runs passes over texts that show pictures. ``mark``: what a picture's tokens are called to the model.
    ``spreads``: whether it places pictures in three dimensions, so that what follows is moved."""

    mark: int
    spreads: bool = False
    _works: Sequence[tuple[Work, Held]] = ()

    def run(self, works: Sequence[Work], held: Sequence[Held]) -> Scored:
        """As `Runner.run`."""
        self._works = list(zip(works, held, strict=True))
        return super().run(works, held)

    def given(self, tokens: Sequence[int], positions: Sequence[int]) -> tuple[Any, Any]:
        """As `Runner.given`."""
        assert isinstance(self.port, SightPort)
        found = [(row, token) for row, token in enumerate(tokens) if isinstance(token, PictureToken)]
        self.port.pictures = found
        ids = [self.mark if isinstance(token, PictureToken) else token for token in tokens]
        placed = torch.tensor([ids, positions], device=self.device)
        if not self.spreads:
            return placed[0], placed[1]
        shifts = self._shifts(tokens)
        moved = (placed[1] + torch.tensor(shifts, device=self.device)).repeat(3, 1)
        for row, token in found:
            first = positions[row] - token.place + shifts[row]
            moved[:, row] = first + token.picture.places[:, token.place]
        return placed[0], moved

    def _shifts(self, tokens: Sequence[int]) -> list[int]:
        """By row, how far the pictures before it move its position; padding rows are moved like the last."""
        shifts: list[int] = []
        for work, (_, held) in self._works:
            now = _shift(work.session, held)
            for token in tokens[len(shifts) : len(shifts) + len(work.tokens) + len(work.draft)]:
                shifts.append(now)
                if isinstance(token, PictureToken) and _last(token):
                    now += token.picture.shift
        return shifts + shifts[-1:] * (len(tokens) - len(shifts))


class SightTarget(TorchTarget):
    """A `sooner.protocols.Target` that is `sooner.protocols.Seeing`, with ``eyes``."""

    eyes: Eyes
    runner: SightRunner

    @property
    def picture_mark(self) -> int:
        """The token by which a text says that a picture belongs there."""
        return self.eyes.mark

    def see(self, picture: bytes) -> list[int]:
        """As `sooner.protocols.Seeing.see`."""
        seen = self.eyes.see(picture)
        if len(seen.layout) >= self.context:
            raise ContextOverflow(
                f"the picture takes {len(seen.layout)} tokens and the context holds {self.context}: make it smaller",
                "messages",
            )
        return seen.tokens()

    def check_pictures(self, prompt: Sequence[int]) -> None:
        """As `sooner.protocols.Seeing.check_pictures`."""
        if self.eyes.mark in prompt:
            raise InvalidRequest(
                f"the prompt has a place for a picture (token {self.eyes.mark}) and no picture: give it in a message",
                "prompt",
            )
        if any(isinstance(token, PictureToken) and token.picture.owner is not self.eyes for token in prompt):
            raise InvalidRequest("the prompt shows a picture that another model saw: build it for this one", "prompt")


def adopt_sight(
    model: Any, folder: Path, plan: MemoryPlan, *, log: Callable[[str], None] | None, **options: Any
) -> Any:
    """As `adopt.adopt`, with eyes; where these are not to be had, a target for text, and `log` has the reason."""
    kinds = (SightPort, SightRunner, SightTarget)
    vocab_size = inner(model).config.get_text_config().vocab_size
    try:
        eyes = Eyes(model, open_processor(folder), vocab_size)
        shown = _shown(model, eyes, vocab_size)
    except (MissingExtra, UnsupportedModel) as error:
        return _blind(adopt(model, plan, log=log, **options), error, log)
    target = adopt(model, plan, log=log, kinds=kinds, **options)
    assert isinstance(target, SightTarget)
    target.eyes, target.runner.mark = eyes, eyes.mark
    try:
        _check(target, shown, tolerance(model, model.dtype))
    except UnsupportedModel as error:
        plain = TorchTarget(target.runner, target.plan, vocab_size=target.vocab_size, fingerprint=target.fingerprint)
        plain.row_invariant = target.row_invariant
        return _blind(plain, error, log)
    target.slots.purge()
    return target


def _blind(target: TorchTarget, reason: SoonerError, log: Callable[[str], None] | None) -> TorchTarget:
    """``target``, for text alone."""
    target.blind = str(reason).partition("; use another")[0]
    (log or _log.warning)(f"images are refused: {reason}")
    return target


def _shown(model: Any, eyes: Eyes, vocab_size: int) -> Shown:
    """The model's own cache, attention and positions, before it is connected. Raises `UnsupportedModel`."""
    from PIL import Image

    noise = np.random.default_rng(7).integers(0, 256, (112, 168, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    text = [t for t in np.random.default_rng(8).integers(0, vocab_size, 40).tolist() if t != eyes.mark][:20]
    try:
        inner(model).set_attn_implementation("eager")
        inputs = eyes.prepared(image)
        more = torch.tensor([text], device=model.device)
        for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
            if name in inputs:
                fill = {"input_ids": more, "attention_mask": torch.ones_like(more)}.get(name, torch.zeros_like(more))
                inputs[name] = torch.cat([inputs[name], fill.to(inputs[name].dtype)], dim=1)
        with torch.inference_mode():
            rows = model(**inputs, use_cache=False).logits[0, -len(text) :]
    except Exception as error:
        raise UnsupportedModel(f"the model cannot look at a picture ({one_line(error)}); use another model") from error
    return image, text, rows.float().cpu().numpy()


_log = logging.getLogger("sooner")


def _check(target: SightTarget, shown: Shown, tolerance: float) -> None:
    """Raises `UnsupportedModel` unless a text behind a picture has the rows that the model itself computes."""
    image, text, rows = shown
    file = io.BytesIO()
    image.save(file, "PNG")
    try:
        seen = target.eyes.see(file.getvalue())
        before, behind = target.eyes.ends
        tokens = (*before, *seen.tokens(), *behind, *text)
        padded = np.concatenate([np.zeros((len(tokens) - len(text), rows.shape[1]), dtype=np.float32), rows])
        target.runner.spreads = seen.places is not None
        check_model(target, tokens, padded, tolerance)
    except SoonerError as error:
        raise UnsupportedModel(f"pictures: {error}") from error


def _own_row(token: PictureToken) -> Any:
    return token.picture.rows[token.place]


def _last(token: PictureToken) -> bool:
    return bool(token.place == token.picture.rows.shape[0] - 1)


def _shift(session: Session, held: int) -> int:
    """How far the pictures that a session holds whole move what follows."""
    return sum(
        token.picture.shift for token in session.tokens[:held] if isinstance(token, PictureToken) and _last(token)
    )
