"""Which engine runs a model: OpenVINO, the fast road on processors, or torch, for any other device and any model.

Knows, of each, how files become a target and what long use wants besides. Does not know drafters or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, cast

from sooner.errors import InvalidRequest

if TYPE_CHECKING:
    from sooner.control.cost import CostCurve
    from sooner.protocols import Target
    from sooner.store import ModelFiles
    from sooner.targets.openvino import OpenVINOTarget
    from sooner.targets.torch.target import TorchTarget

__all__ = ["Backend", "BackendName", "TorchOptions", "choose_backend"]

BackendName = Literal["auto", "openvino", "torch"]
Say = Callable[[str], None]


class TorchOptions(TypedDict, total=False):
    """What only torch takes. ``quantization``: "4bit", "8bit", or a configuration object of transformers;
    ``adapter``: a folder with a LoRA adapter; ``strict``: every pass in one fixed shape; ``compile``: passes of few
    fixed shapes, compiled."""

    quantization: Any
    adapter: str | None
    strict: bool
    compile: bool


class Backend(Protocol):
    """An engine for models. ``heads``: whether trained heads run beside its targets."""

    heads: bool

    def resolve(self, model: str | None, *, offline: bool, progress: Say | None) -> ModelFiles:
        """The files of ``model`` in the form that this engine runs. Raises as `store.resolve`."""
        ...

    def target(self, files: ModelFiles, **options: Any) -> Target:
        """A target. ``options``: ``threads``, ``precision``, ``pool_tokens``, ``taps``, ``log``."""
        ...

    def ready(self, target: Target, curve: CostCurve, warm: bool | Literal["background"], running: int) -> None:
        """What is set up once passes' costs are known; ``warm`` and ``running`` as ``max_running`` of `sooner.load`."""
        ...


def choose_backend(
    name: BackendName, device: str | None, options: TorchOptions | None = None, running: int = 8
) -> Backend:
    """The engine for ``name`` and ``device``; ``running``: texts side by side. Raises `InvalidRequest`."""
    if name not in ("auto", "openvino", "torch"):
        raise InvalidRequest(f"backend must be auto, openvino or torch, not {name!r}", "backend")
    elsewhere = device not in (None, "cpu")
    if name == "openvino" and elsewhere:
        raise InvalidRequest(f"OpenVINO runs models on cpu here, not on {device}: leave out the backend", "device")
    if name == "torch" or (name == "auto" and elsewhere):
        return _Torch(device or "auto", options or {}, running)
    if given := [key for key, value in (options or {}).items() if value]:
        raise InvalidRequest(f"{', '.join(given)} needs torch: add --backend torch, or a --device", given[0])
    return _OpenVINO()


class _OpenVINO:
    heads = True

    def resolve(self, model: str | None, *, offline: bool, progress: Say | None) -> ModelFiles:
        from sooner.store import resolve

        return resolve(model, offline=offline, progress=progress)

    def target(self, files: ModelFiles, **options: Any) -> Target:
        from sooner.store.cache import recall, remember
        from sooner.targets.openvino import load

        return load(files, recall=recall, remember=remember, **options)

    def ready(self, target: Target, curve: CostCurve, warm: bool | Literal["background"], running: int) -> None:
        from sooner.targets.openvino.lanes import SINGLE, WIDTHS
        from sooner.targets.openvino.width import Width

        paged = cast("OpenVINOTarget", target)
        paged.width = Width(curve.row_ms, curve.change_ms)
        if warm:
            compile = paged.lanes.warm if warm == "background" else paged.lanes.build
            compile(SINGLE if running == 1 else WIDTHS)


class _Torch:
    heads = False

    def __init__(self, device: str, options: TorchOptions, running: int) -> None:
        self._device = device
        self._options = options
        self._slots = max(running, 2)

    def resolve(self, model: str | None, *, offline: bool, progress: Say | None) -> ModelFiles:
        from sooner.store import resolve_folder

        return resolve_folder(model, offline=offline, progress=progress)

    def target(self, files: ModelFiles, *, taps: Sequence[int] = (), **options: Any) -> Target:
        from sooner.store.cache import recall, remember
        from sooner.targets.openvino.memory import available_bytes
        from sooner.targets.torch import load

        return load(
            files,
            device=self._device,
            slots=self._slots,
            taps=taps,
            available=available_bytes,
            recall=recall,
            remember=remember,
            **self._options,
            **options,
        )

    def ready(self, target: Target, curve: CostCurve, warm: bool | Literal["background"], running: int) -> None:
        """Compiled shapes are captured as they are met, over as few slots as hold a text: none of a measurement."""
        cast("TorchTarget", getattr(target, "decoder", target)).slots.purge()
