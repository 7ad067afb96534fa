"""From a model's name to an engine that is ready: files, tokenizer, chat template, target, drafter.

Knows which part comes from where. Does not know how any of them works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sooner.control.fixed import FixedController
from sooner.draft import create_drafter
from sooner.engine import Engine

if TYPE_CHECKING:
    from sooner.protocols import Controller, Drafter
    from sooner.targets.openvino.load import Precision

__all__ = ["DEFAULT_DRAFT", "load"]

DEFAULT_DRAFT = "suffix"


def load(
    model: str | None = None,
    *,
    draft: str | Mapping[str, object] | Drafter | None = DEFAULT_DRAFT,
    budget: int = 8,
    controller: Controller | None = None,
    precision: Precision = "auto",
    threads: int | None = None,
    pool_tokens: int | None = None,
    max_running: int = 8,
    offline: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Engine:
    """An engine for ``model``: a path (.gguf, OpenVINO or Hugging Face folder), a Hugging Face id, or None for the
    built-in default, which is fetched once.

    ``draft``: a drafter, or its short form such as ``"ngram"`` or ``"kind=suffix,max=8"``; None decodes plainly.
    ``budget``: draft tokens per step, unless a ``controller`` decides. ``precision``: "auto", "bf16" or "f32".
    ``pool_tokens``: tokens the KV cache holds, all texts together (None = as memory allows; one text's context is at
    most this). ``max_running``: texts decoded side by side. ``offline``: never download. ``progress`` gets one-line
    messages.
    Raises a `SoonerError` whose message names the remedy.
    """
    from sooner.chat import ChatTemplate
    from sooner.store import resolve
    from sooner.store.cache import recall, remember
    from sooner.targets.openvino import load as load_target
    from sooner.text import Tokenizer

    files = resolve(model, offline=offline, progress=progress)
    codec = Tokenizer.load(files.folder)
    target = load_target(
        files,
        threads=threads,
        precision=precision,
        pool_tokens=pool_tokens,
        log=progress,
        recall=recall,
        remember=remember,
    )
    template = None
    if files.chat_template is not None:
        template = ChatTemplate(files.chat_template, bos_token=codec.bos_token, eos_token=codec.eos_token)
    if isinstance(draft, str | Mapping):
        draft = create_drafter(draft, target=target, codec=codec)
    return Engine(
        target,
        codec,
        template=template,
        drafter=draft,
        controller=controller or FixedController(budget),
        name=files.name,
        max_running=max_running,
    )
