"""Drafting inside transformers' own `generate`, for a model that the user already holds: `speed_up`.

Knows what users pass, and which parts of sooner serve them. Does not know steps, passes or draws; transformers is met
in `transformers_port` alone.

`generate` prepares inputs, processors, criteria and the cache as ever, and then runs our loop (``custom_generate``).
That loop is not the engine's: there texts keep what each agrees with, here processors, criteria and the cache are
transformers', made for whole batches of one length.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from sooner.control.cost import CostCurve
from sooner.control.fixed import FixedController
from sooner.control.goodput import GoodputController
from sooner.draft import create_drafter, parse_spec
from sooner.draft.cascade import CascadeDrafter
from sooner.errors import DraftError, InvalidRequest, MissingExtra
from sooner.integrations.transformers_guess import Figures, Guessing
from sooner.protocols import Controller, Drafter
from sooner.types import Sampling

try:
    from sooner.integrations import transformers_loop as loop
    from sooner.integrations import transformers_port as port
    from sooner.integrations.transformers_settings import check_config
except ModuleNotFoundError as error:
    if error.name in ("torch", "transformers"):
        raise MissingExtra("drafting in transformers' generate", "torch") from error
    raise

__all__ = ["DRAFT", "Figures", "Sped", "speed_up"]

DRAFT = ("suffix", "recycle")
"""The drafters that need neither a model nor a tokenizer."""

_TARGETS = ("self", "layerskip", "head")
_READERS = ("model", "corpus")

log = logging.getLogger("sooner")


def speed_up(
    model: Any,
    tokenizer: Any = None,
    *,
    draft: str | Mapping[str, object] | Drafter | Sequence[str | Mapping[str, object]] | None = DRAFT,
    budget: int | None = None,
    controller: Controller | None = None,
) -> Sped:
    """``model`` with a `generate` that drafts: same arguments, same result, fewer passes.

    The model itself stays as it is; ``model.generate = speed_up(model).generate`` serves code that calls it there.
    ``draft``: a drafter, its short form such as ``"ngram"`` or ``"kind=model,path=..."``, or several short forms, whose
    guesses are merged; None decodes plainly. ``tokenizer``: the model's, a fast one; drafters that read text need it, a
    draft model for one. How much of a draft is worth scoring is decided at every step from what passes cost on this
    device (measured in the first call with so many texts), unless ``budget`` fixes the draft tokens per step or a
    ``controller`` decides. Raises `MissingExtra`, `TargetError` for a version of transformers that is not supported,
    `UnsupportedModel`, `DraftError`.
    """
    port.check_version()
    port.check_model(model)
    drafter = _drafter(draft, model, tokenizer)
    return Sped(model, drafter, tokenizer=tokenizer, budget=budget, controller=controller)


class Sped:
    """A model and the drafter for it; `speed_up` makes one. ``last`` says what the last `generate` took."""

    def __init__(
        self,
        model: Any,
        drafter: Drafter | None,
        *,
        tokenizer: Any = None,
        budget: int | None = None,
        controller: Controller | None = None,
    ) -> None:
        self.model = model
        self.drafter = drafter
        self.tokenizer = tokenizer
        self.last = Figures()
        self._plain = model.generate
        fixed = FixedController(budget) if budget is not None else None
        self._given: Controller | None = controller or fixed
        self._measured: dict[int, tuple[Controller, float]] = {}
        self._ids = itertools.count()

    def generate(
        self,
        inputs: Any = None,
        generation_config: Any = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        *,
        tokenizer: Any = None,
        streamer: Any = None,
        **options: Any,
    ) -> Any:
        """What ``model.generate`` returns for the same arguments, at temperature 0 and, with the same torch seed, when
        sampling: any logits processor, stopping criterion, streamer and batch included.

        Raises `InvalidRequest` naming what drafting does not support: beams, other caches, attentions, ...
        """
        port.check_alone()
        for name in ("assistant_model", "assistant_tokenizer", "synced_gpus", "custom_generate"):
            if options.pop(name, None):
                raise InvalidRequest(f"{name} is not supported with drafting: leave it out", name)
        options["stopping_criteria"] = stopping_criteria
        options["generation_config"] = generation_config
        options = port.with_stop_strings(self.model, options, tokenizer or self.tokenizer)

        def decode(model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, **prepared: Any) -> Any:
            config = prepared.pop("generation_config")
            check_config(config)
            if streamer is not None:
                streamer.put(input_ids.cpu())  # generate does so where it is told of the streamer
            rules = {"processors": logits_processor, "criteria": stopping_criteria, "streamer": streamer}
            run = loop.Run(port.Passes(model, prepared, config), input_ids, config, **rules)
            return self._decode(run, port.prompts(input_ids, prepared.get("attention_mask")))

        return self._plain(inputs, logits_processor=logits_processor, custom_generate=decode, **options)

    def _decode(self, run: Any, texts: list[list[int]]) -> Any:
        """Called by `generate` once all is prepared."""
        model, config = run.passes.model, run.config
        controller, second = self._controller(model, len(texts))
        guessing = Guessing(
            self.drafter,
            controller,
            texts,
            ids=[next(self._ids) for _ in texts],
            sampling=Sampling(temperature=_temperature(config)),
            vocab_size=port.vocab_size(model),
            failed=self._failed,
            second=second,
        )
        try:
            run.decode(guessing)
        finally:
            guessing.close()
            self.last = guessing.figures
        return port.result(run.ids, config, run.scores, run.logits, run.passes.cache)

    def _controller(self, model: Any, texts: int) -> tuple[Controller, float]:
        """Who decides how much is drafted for so many texts, and what a second row costs."""
        if self._given is not None or self.drafter is None:
            return self._given or FixedController(0), 0.0
        if texts not in self._measured:
            ms = port.measure(model, texts, port.WIDTHS)
            # the controller counts two rows for a plain step, as sooner's own targets feed; here it is one
            curve = CostCurve(rows=(2, *port.WIDTHS[2:]), ms=(ms[0], *ms[2:]))
            self._measured[texts] = GoodputController(curve), ms[1] / ms[0] - 1.0
        return self._measured[texts]

    def _failed(self, error: Exception) -> None:
        self.drafter = None


def _temperature(config: Any) -> float:
    """Above 0 whenever tokens are drawn."""
    if not config.do_sample:
        return 0.0
    return min(max(float(1.0 if config.temperature is None else config.temperature), 1e-6), 1e4)


def _drafter(draft: Any, model: Any, tokenizer: Any) -> Drafter | None:
    if draft is None:
        return None
    if isinstance(draft, str | Mapping):
        draft = [draft]
    if not isinstance(draft, Sequence):
        given: Drafter = draft
        return given
    return CascadeDrafter([_made(spec, model, tokenizer) for spec in draft])


def _made(spec: str | Mapping[str, object], model: Any, tokenizer: Any) -> Drafter:
    kind = (parse_spec(spec) if isinstance(spec, str) else spec).get("kind")
    if kind in _TARGETS:
        raise DraftError(
            f'drafter {kind} runs parts of a model that sooner loaded: use sooner.load(model, backend="torch"), or '
            f"{', '.join(DRAFT)}"
        )
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or 2**31
    return create_drafter(spec, **_offered(kind, port.vocab_size(model), limit, port.end_ids(model), tokenizer))


def _offered(kind: object, vocab_size: int, context: int, ends: tuple[int, ...], tokenizer: Any) -> dict[str, object]:
    """What drafters may name: no target, as the model is transformers' own; a draft model gets its measures."""
    from sooner.loading import open_model
    from sooner.store.shelf import shelved
    from sooner.text import Tokenizer

    offered: dict[str, object] = {
        "vocab_size": vocab_size,
        "eos_ids": ends,
        "shelf": shelved,
        "open_model": open_model,
        "say": log.info,
    }
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is not None:
        offered["codec"] = Tokenizer(core, eos_ids=ends)
    elif kind in _READERS:
        raise DraftError(
            f"drafter {kind} needs the model's tokenizer, a fast one: speed_up(model, tokenizer, draft=...)"
        )
    if kind == "model":
        offered["target"] = SimpleNamespace(vocab_size=vocab_size, context=context)
    return offered
