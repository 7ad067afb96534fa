"""From a model's name to an engine that is ready: files, tokenizer, chat template, target, drafter.

Knows which part comes from where. Does not know how any of them works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from sooner.backend import choose_backend
from sooner.control.cost import CostCurve, measure_cost
from sooner.control.fixed import FixedController
from sooner.control.goodput import GoodputController
from sooner.control.price import Price
from sooner.draft import create_drafter
from sooner.draft.cascade import CascadeDrafter
from sooner.draft.table import packaged_table
from sooner.engine import Engine
from sooner.errors import DraftError, ModelError, TargetError
from sooner.prompt import PictureTemplate, SoundTemplate
from sooner.protocols import Encoding, Hearing, Seeing

if TYPE_CHECKING:
    from sooner.backend import Backend, BackendName, TorchOptions
    from sooner.draft.head import HeadRunner
    from sooner.prompt import Template
    from sooner.protocols import Controller, Drafter, Target
    from sooner.store import ModelFiles
    from sooner.targets.openvino import OpenVINOTarget
    from sooner.targets.openvino.load import Precision
    from sooner.text import TextCodec

__all__ = ["AUTO_DRAFT", "DEFAULT_DRAFT", "load", "make_drafter", "open_head", "open_model"]

DEFAULT_DRAFT = "cascade"
"""Every drafter that needs no model: suffix, recycle, and table where one is shipped for the model."""

AUTO_DRAFT = "auto"
"""What ``sooner tune`` found to be fastest for the model on this machine, else `DEFAULT_DRAFT`."""

log = logging.getLogger("sooner")


def load(
    model: str | None = None,
    *,
    draft: str | Mapping[str, object] | Drafter | Sequence[str | Mapping[str, object]] | None = AUTO_DRAFT,
    budget: int | None = None,
    controller: Controller | None = None,
    precision: Precision = "auto",
    threads: int | None = None,
    pool_tokens: int | None = None,
    max_running: int = 8,
    remember: bool = False,
    taps: Sequence[int] = (),
    heads: Sequence[str] = (),
    warm: bool | Literal["background"] = False,
    backend: BackendName = "auto",
    device: str | None = None,
    torch: TorchOptions | None = None,
    offline: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Engine:
    """An engine for ``model``: a path (.gguf, OpenVINO or Hugging Face folder), a Hugging Face id, or None for the
    built-in default, which is fetched once.

    ``draft``: a drafter, its short form such as ``"ngram"`` or ``"kind=suffix,max=8"``, or several short forms, whose
    guesses are merged; "auto" is what ``sooner tune`` found for the model on this machine, or all drafters that need no
    model; None decodes plainly. How much of a draft is worth scoring is decided at every step from what
    passes cost on this machine, unless ``budget`` fixes the draft tokens per step or a ``controller`` decides.
    ``precision``: "auto", "bf16" or "f32". ``pool_tokens``: tokens the KV cache holds, all texts together (None = as
    memory allows; one text's context is at most this). ``max_running``: texts decoded side by side. ``remember``: the
    default drafters also copy from earlier texts of the engine (under equal salts). ``taps``: layers whose rows the
    target shows to drafters (a trained head asks for its own). ``heads``: short forms of trained heads that are to
    draft later, besides those in ``draft``. ``warm``: compile now, or in the background, the graphs that long use wants
    and short use does not (seconds, and memory of a few times the weights); without it each is compiled once its lack
    has cost as much. ``backend``: "openvino" (the default on processors) or "torch" (any model that transformers loads;
    the default for any other ``device``: cuda, cuda:N, mps). ``torch``: options of that back end alone.
    ``offline``: never download.
    ``progress`` gets one-line messages. Raises a `SoonerError` whose message names the remedy.
    """
    from sooner.chat import ChatTemplate
    from sooner.text import Tokenizer

    place = choose_backend(backend, device, torch, max_running)
    files = place.resolve(model, offline=offline, progress=progress)
    codec = Tokenizer.load(files.folder, eos_ids=files.eos_ids or None)
    if place.heads:
        taps = tuple(taps) or _head_taps(heads, files) or _head_taps(draft, files)
    target = place.target(
        files, threads=threads, precision=precision, pool_tokens=pool_tokens, taps=tuple(taps), log=progress
    )
    template: Template | None = None
    if files.chat_template is not None:
        template = ChatTemplate(files.chat_template, bos_token=codec.bos_token, eos_token=codec.eos_token)
    if isinstance(target, Seeing) and template is not None:
        template = PictureTemplate(template, target, codec)
    elif isinstance(target, Hearing):
        template = SoundTemplate(target, codec)
    if place.heads:
        cast("OpenVINOTarget", target).heads = partial(open_head, files=files, taps=taps, threads=threads, say=progress)
    opening = partial(
        open_model,
        threads=threads,
        precision=precision,
        pool_tokens=pool_tokens,
        place=place,
        offline=offline,
        progress=progress,
    )
    if draft == AUTO_DRAFT and budget is None and controller is None:
        draft, budget = _tuned(target, codec, files.sha256, progress, opening, remember=remember)
    drafter = make_drafter(draft, target, codec, files.sha256, remember=remember, opening=opening, say=progress)
    curve = _cost(target, threads)  # before lanes: it is the price of passes without one
    place.ready(target, curve, warm, max_running)
    if controller is None:
        fixed = budget is not None
        controller = FixedController(budget or 0) if fixed else GoodputController(Price(curve, lambda: target.widths))
    engine = Engine(
        target,
        codec,
        template=template,
        drafter=drafter,
        controller=controller,
        name=files.name,
        max_running=max_running,
    )
    engine.cost, engine.open_model = curve, opening
    return engine


def _tuned(
    target: Target,
    codec: TextCodec,
    model: str,
    progress: Callable[[str], None] | None,
    opening: Callable[[str], tuple[Target, TextCodec]],
    *,
    remember: bool,
) -> tuple[str | Drafter | None, int | None]:
    """Drafter and budget of the profile that ``sooner tune`` made for this model here, else the default ones."""
    from sooner.store.profile import find_profile

    say = progress or log.warning
    profile = find_profile(target.fingerprint, say)
    if profile is not None:
        (progress or log.info)(f"tuned: {profile}")
        if profile.draft == (DEFAULT_DRAFT,):
            return DEFAULT_DRAFT, profile.budget
        specs = [*profile.draft, *(["memory"] if remember and profile.draft and "memory" not in profile.draft else [])]
        try:
            return make_drafter(specs or None, target, codec, model, opening=opening), profile.budget
        except DraftError as error:
            say(f"profile of this model is ignored: {error}; sooner tune makes a new one")
    return DEFAULT_DRAFT, None


def make_drafter(
    draft: str | Mapping[str, object] | Drafter | Sequence[str | Mapping[str, object]] | None,
    target: Target,
    codec: TextCodec,
    model: str,
    *,
    remember: bool = False,
    opening: Callable[[str], tuple[Target, TextCodec]] | None = None,
    say: Callable[[str], None] | None = None,
) -> Drafter | None:
    """The drafter for what `load` was given; short forms go into a cascade, which calibrates what they claim.

    ``opening`` loads draft models (an engine's ``open_model``; None: `open_model`); ``say`` gets one-line messages
    about them.
    """
    if draft is None:
        return None
    from sooner.store.cache import cache_dir
    from sooner.store.head_file import find_head
    from sooner.store.shelf import shelved

    tables = cache_dir("tables") if model else None
    heads = getattr(target, "heads", None)
    if draft in (AUTO_DRAFT, DEFAULT_DRAFT):
        draft = ["suffix", "recycle", *(["table"] if packaged_table(model, tables) else [])]
        draft += ["memory"] if remember else []
        draft += ["head"] if heads is not None and find_head("", model) else []
    if isinstance(draft, str | Mapping):
        draft = [draft]
    if not isinstance(draft, Sequence):
        return draft
    offered = {
        "target": target,
        "codec": codec,
        "vocab_size": target.vocab_size,
        "eos_ids": tuple(codec.eos_ids),
        "model": model,
        "shelf": shelved,
        "tables": tables,
        "open_model": opening or open_model,
        "say": say or log.info,
        "tuned_skip": lambda: _tuned_skip(target, say or log.info),
        "open_head": heads or _no_heads,
    }
    return CascadeDrafter([create_drafter(spec, **offered) for spec in draft])


def _no_heads(path: str, force: bool) -> HeadRunner:
    raise DraftError(
        "trained heads run beside models on OpenVINO only: leave the head out, or leave out --backend torch"
    )


def _tuned_skip(target: Target, say: Callable[[str], None]) -> str:
    """The sublayers that the drafter ``layerskip`` leaves out, if ``sooner tune --layerskip`` looked for them here."""
    from sooner.store.profile import find_profile

    profile = find_profile(target.fingerprint, say)
    return profile.skip if profile is not None else ""


def open_model(
    model: str,
    *,
    threads: int | None = None,
    precision: Precision = "auto",
    pool_tokens: int | None = None,
    place: Backend | None = None,
    offline: bool = False,
    progress: Callable[[str], None] | None = None,
) -> tuple[Target, TextCodec]:
    """A draft model's target and tokenizer; the memory plan goes to ``progress``. ``place``: the engine that runs it
    (None: OpenVINO). Other options and errors as for `load`."""
    from sooner.text import Tokenizer

    def say(message: str) -> None:
        (progress or log.info)(f"draft model: {message}")

    try:
        place = place or choose_backend("openvino", None)
        files = place.resolve(model, offline=offline, progress=say)
        target = place.target(files, threads=threads, precision=precision, pool_tokens=pool_tokens, log=say)
        return target, Tokenizer.load(files.folder, eos_ids=files.eos_ids or None)
    except (ModelError, TargetError) as error:
        raise type(error)(f"draft model: {error}") from error


def open_head(
    path: str,
    force: bool,
    *,
    files: ModelFiles,
    taps: Sequence[int],
    threads: int | None,
    say: Callable[[str], None] | None = None,
) -> HeadRunner:
    """The head at ``path`` (none: made or shipped for the model), ready to run beside a target that shows ``taps``.
    Its memory goes to ``say``. Raises `DraftError`, `CorruptModel`."""
    from sooner.store.head_file import find_head, fitting_head
    from sooner.targets.openvino.head import OpenVINOHead
    from sooner.targets.openvino.memory import return_freed, size

    folder = find_head(path, files.sha256)
    if folder is None:
        raise DraftError("there is no head for this model: make one with sooner train --kind head, or name its path")
    head = fitting_head(folder, files, force=force)
    if head.layers != tuple(taps):
        shown = ", ".join(map(str, taps)) or "none"
        raise DraftError(
            f"{folder} reads layers {', '.join(map(str, head.layers))}, the target was loaded to show {shown}: "
            "load the model with this head alone among its drafters"
        )
    runner = OpenVINOHead(head, files.xml, threads=threads)
    (say or log.info)(f"memory: the head {folder} takes {size(runner.memory)} besides the target")
    del head  # its weights in float32, several times what is kept of them
    return_freed()
    return runner


def _head_taps(draft: object, files: ModelFiles) -> tuple[int, ...]:
    """The layers that the heads in ``draft`` read, in the default set too; () without one. Raises as `open_head`."""
    from sooner.draft import parse_spec
    from sooner.store.head_file import find_head, fitting_head

    if draft in (AUTO_DRAFT, DEFAULT_DRAFT):
        draft = "head"
    given = [draft] if isinstance(draft, str | Mapping) else draft if isinstance(draft, Sequence) else ()
    specs = [parse_spec(one) if isinstance(one, str) else one for one in given if isinstance(one, str | Mapping)]
    found: tuple[int, ...] = ()
    for spec in specs:
        folder = find_head(str(spec.get("path", "")), files.sha256) if spec.get("kind") == "head" else None
        if folder is not None:
            forced = str(spec.get("force", "")).lower() in ("true", "yes", "on", "1")
            found = fitting_head(folder, files, force=forced).layers
    return found


def _cost(target: Target, threads: int | None) -> CostCurve:
    """The target's cost curve: measured at the first load on this machine, remembered for the next."""
    from sooner.store.cache import recall, remember

    key = f"cost\n{sorted(target.fingerprint.items())}\n{threads}"
    try:
        return CostCurve.from_dict((recall(key) or {})["curve"])
    except (KeyError, TypeError, ValueError):  # not measured yet, or by a version that measured otherwise
        curve = measure_cost(target.decoder if isinstance(target, Encoding) else target)
        remember(key, {"curve": curve.to_dict()})
        return curve
