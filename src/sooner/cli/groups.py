"""Options that come together, and how a command takes them without repeating them.

Knows which options belong together and their defaults. Does not know what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from sooner.cli import options as o

__all__ = ["DRAFTING", "ENGINE", "PENALTIES", "SAMPLING", "TRUNCATION", "Group", "taking"]

Group = Mapping[str, tuple[Any, Any]]
"""Options by parameter name: the annotation that declares it, and the default."""

ENGINE: Group = {
    "model": (o.Model, None),
    "offline": (o.Offline, False),
    "threads": (o.Threads, None),
    "precision": (o.Precision, "auto"),
    "max_context": (o.Context, None),
    "backend": (o.Backend, "auto"),
    "device": (o.Device, None),
    "quantization": (o.Quantization, None),
    "adapter": (o.Adapter, None),
    "strict": (o.Strict, False),
    "compile": (o.Compile, False),
}
DRAFTING: Group = {
    "draft": (o.Draft, None),
    "speculative_config": (o.SpeculativeConfig, None),
    "budget": (o.Budget, None),
    "verify": (o.Verify, "coupled"),
}
SAMPLING: Group = {
    "temperature": (o.Temperature, 0.0),
    "seed": (o.Seed, None),
    "max_tokens": (o.MaxTokens, 512),
}
TRUNCATION: Group = {
    "top_p": (o.TopP, 1.0),
    "top_k": (o.TopK, 0),
    "min_p": (o.MinP, 0.0),
}
PENALTIES: Group = {
    "repetition_penalty": (o.RepetitionPenalty, 1.0),
    "presence_penalty": (o.PresencePenalty, 0.0),
    "frequency_penalty": (o.FrequencyPenalty, 0.0),
}

Command = Callable[..., None]


def taking(*groups: Group, **defaults: Any) -> Callable[[Command], Command]:
    """A command with the options of ``groups`` besides its own, some with other ``defaults``.

    Their values are in ``context.params``, from where `engine_options` and `sampling_from` take them; the command's
    own parameters name only what it reads itself. The help page has them in the panels' order.
    """

    def decorate(command: Command) -> Command:
        own = signature(command, eval_str=True)
        shared = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name, default), annotation=annotation)
            for group in groups
            for name, (annotation, default) in group.items()
            if name not in own.parameters
        ]

        @wraps(command)
        def run(**given: Any) -> None:
            command(**{name: value for name, value in given.items() if name in own.parameters})

        parameters = sorted([*own.parameters.values(), *shared], key=_place)
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # what typer reads
        return run

    return decorate


def _place(parameter: Parameter) -> tuple[bool, int]:
    """Arguments first, then options by panel."""
    panels = [getattr(info, "rich_help_panel", None) for info in getattr(parameter.annotation, "__metadata__", ())]
    panel = next(iter(panels), None)
    return parameter.kind is Parameter.KEYWORD_ONLY, o.PANELS.index(panel) if panel in o.PANELS else -1
