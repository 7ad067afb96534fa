"""Drafting inside vLLM: sooner's drafters without a model and its controller, as a custom proposer class of vLLM's.

Knows what users may set, and which parts of sooner serve it. Does not know vLLM, which is met in one module for each
range of versions (`vllm_port`), nor when anything is drafted.

    vllm serve MODEL --speculative-config '{"method": "custom_class",
        "model": "sooner.integrations.vllm.Proposer", "num_speculative_tokens": 16}'

Options stand under "sooner" in ``--additional-config``: see `Options`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sooner.draft import create_drafter, parse_spec
from sooner.draft.cascade import CascadeDrafter
from sooner.draft.table import packaged_table
from sooner.errors import DraftError, InvalidRequest, SoonerError, TargetError, nearest
from sooner.integrations.vllm_gauge import Pacing
from sooner.integrations.vllm_guess import Guessing
from sooner.integrations.vllm_port import PORTS, Place, installed, port_for
from sooner.integrations.vllm_texts import Texts
from sooner.protocols import Drafter
from sooner.store.cache import cache_dir, content_hash

__all__ = ["DRAFT", "METHOD", "PORTS", "Options", "Proposer"]

METHOD = "sooner.integrations.vllm.Proposer"
"""What ``model`` says in vLLM's speculative configuration."""

DRAFT = ("suffix", "recycle")
"""The drafters used where none are named, with ``table`` where one was made for the model."""

_NEED_A_MODEL = ("model", "head", "self", "layerskip")
_NEED_MORE = {
    "corpus": "the model's tokenizer",
    "given": "an expected text with each request",
    "oracle": "the texts themselves",
}

log = logging.getLogger("sooner")


@dataclass(frozen=True, slots=True)
class Options:
    """``draft``: short forms of drafters, merged; by default `DRAFT`. ``budget``: draft tokens per request and pass;
    without it the controller decides. ``tokens``: those of all requests that are kept for drafting, about 0.6 kB each;
    requests that would exceed it are not drafted for."""

    draft: tuple[str, ...] | None = None
    budget: int | None = None
    tokens: int = 200_000

    @classmethod
    def read(cls, given: Any, most: int) -> Options:
        """Of what a user wrote, for an engine with room for ``most`` draft tokens. Raises `InvalidRequest`."""
        if not isinstance(given, Mapping):
            raise InvalidRequest('sooner\'s options in additional_config are an object, as {"sooner": {"budget": 4}}')
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                raise InvalidRequest(
                    f"sooner has no option {name!r} in vLLM{nearest(str(name), known)}: there are {', '.join(known)}"
                )
        options = dict(given)
        if (draft := options.get("draft")) is not None:
            options["draft"] = _names(draft)
        for name, high in (("budget", most), ("tokens", 2**40)):
            value = options.get(name)
            if value is not None and not (type(value) is int and 0 <= value <= high):
                raise InvalidRequest(f"sooner's {name} in vLLM must be an integer from 0 to {high}, not {value!r}")
        return cls(**{name: value for name, value in options.items() if value is not None})


def _names(draft: Any) -> tuple[str, ...]:
    found = (draft,) if isinstance(draft, str) else draft
    if not isinstance(found, list | tuple) or not found or not all(isinstance(one, str) for one in found):
        raise InvalidRequest(
            f'sooner\'s draft in vLLM is a list of short forms, as ["suffix", "recycle"], not {draft!r}'
        )
    return tuple(found)


class Proposer:
    """What vLLM makes once in each worker, with its ``VllmConfig``, and asks for drafts after each pass.

    Raises `TargetError` for a version that is not supported, `InvalidRequest` and `DraftError` for options.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._port = port_for(installed())
        place = self._port.read(vllm_config)
        if place.obstacle:
            raise TargetError(place.obstacle)
        options = Options.read(place.options, place.most)
        drafter = drafter_for(options, place)
        self._watch = self._port.watch()
        self._guessing = Guessing(
            drafter,
            Pacing(place.most, options.budget, log.info),
            Texts(options.tokens),
            vocab_size=place.vocab_size,
            context=place.context,
            most=place.most,
        )
        log.info("sooner drafts with %s, at most %d tokens a request and pass", drafter.name, place.most)

    def load_model(self, model: Any, *more: Any, **named: Any) -> None:
        """vLLM's model is ready."""
        if not self._watch.attach(model):
            log.warning("%s does not show its logits: the drafter recycle learns nothing", type(model).__name__)

    def propose(self, *given: Any, **named: Any) -> list[list[int]]:
        """Draft tokens for each request of the batch, from the arguments of vLLM's hook; none is always possible."""
        return self._guessing.next(self._port.rows(*given, **named), self._watch.take())


def drafter_for(options: Options, place: Place, say: Callable[[str], None] = log.info) -> Drafter:
    """The drafters of ``options``, in a cascade, which calibrates what they claim. Raises `DraftError`."""
    tables = _tables(place)
    names = options.draft or (*DRAFT, *(["table"] if tables and packaged_table(*tables) else []))
    offered: dict[str, object] = {"vocab_size": place.vocab_size, "eos_ids": ()}
    if tables:
        offered["model"], offered["tables"] = tables
    return CascadeDrafter([_made(name, offered) for name in names])


def _made(name: str, offered: Mapping[str, object]) -> Drafter:
    kind = parse_spec(name)["kind"]
    if kind in _NEED_A_MODEL:
        raise DraftError(
            f"drafter {kind} needs a model, and vLLM runs only its own: use its method draft_model, or "
            f"{', '.join(DRAFT)}"
        )
    if kind in _NEED_MORE:
        raise DraftError(f"drafter {kind} needs {_NEED_MORE[kind]}, which vLLM does not show: use {', '.join(DRAFT)}")
    return create_drafter(name, **offered)


def _tables(place: Place) -> tuple[str, Path] | None:
    """The model's hash and the folder of tables that ``sooner train`` made; None where there are none to look at."""
    folder = Path(place.model)
    try:
        made = cache_dir("tables")
        weights = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
        if not weights or not any(made.glob("*.npz")):
            return None
        return content_hash(*([folder / "config.json"] if (folder / "config.json").is_file() else []), *weights), made
    except (OSError, SoonerError) as error:
        log.info("tables are not looked for: %s", error)
        return None
