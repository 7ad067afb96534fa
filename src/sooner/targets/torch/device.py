"""Devices: which there are, what they are called, what memory they have left, and the type a model computes in there.

Knows torch's devices. Does not know models or caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sooner.errors import InvalidRequest

__all__ = ["PRECISIONS", "find_device", "free_bytes", "full_name", "out_of_memory", "precision"]

PRECISIONS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def find_device(name: str) -> Any:
    """The device ``name``: cpu, cuda, cuda:1, mps, or auto. Raises `InvalidRequest` for one that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (index and not index.isdecimal()):
        raise InvalidRequest(f"device must be auto, cpu, cuda, cuda:N or mps, not {name!r}", "device")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest(
            f"torch {torch.__version__} sees no CUDA GPU: use --device cpu, or a CUDA build of torch and its driver",
            "device",
        )
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise InvalidRequest(f"there is no device {name}: this machine has cuda:0 to {_last_gpu()}", "device")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise InvalidRequest("torch sees no Apple GPU here: use --device cpu", "device")
    return torch.device(name)


def full_name(device: Any, processor: str) -> str:
    """What runs: the GPU's name and capability, or ``processor``."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor}, CUDA {torch.version.cuda})"
    return processor if device.type == "cpu" else f"{device.type} on {processor}"


def free_bytes(device: Any, machine: Callable[[], int]) -> int:
    """Bytes that are free on ``device``; ``machine`` tells those of main memory."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return machine()


def precision(name: str, device: Any, own: Any) -> Any:
    """The type to compute in: the model's ``own`` on GPUs, float32 on processors, unless ``name`` says another.

    Raises `InvalidRequest`.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" or own is None else own
    if name not in PRECISIONS:
        raise InvalidRequest(f"precision must be auto, {', '.join(PRECISIONS)}, not {name!r}", "precision")
    return PRECISIONS[name]


def _last_gpu() -> str:
    return f"cuda:{torch.cuda.device_count() - 1}"


def out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that a device is full."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "out of memory" in str(error).lower()
