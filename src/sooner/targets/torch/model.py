"""From a Hugging Face folder to a transformers model on its device: types, quantisation, adapters, and refusals.

Knows `AutoModelForCausalLM` and what it needs installed. Does not know caches, sessions or passes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from sooner.errors import CorruptModel, InvalidRequest, SoonerError, TargetError, UnsupportedModel, one_line
from sooner.targets.torch.adapter import adapted
from sooner.targets.torch.device import out_of_memory

__all__ = ["load_model", "quantisation_of", "read_config", "weight_bytes"]

_NEEDS = {
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "torchao": ("torchao", "accelerate"),
    "gptq": ("gptqmodel", "optimum", "accelerate"),
    "awq": ("gptqmodel", "accelerate"),
    "compressed-tensors": ("compressed_tensors", "accelerate"),
    "hqq": ("hqq", "accelerate"),
    "quanto": ("optimum.quanto", "accelerate"),
}
"""Packages that a quantisation method wants, by transformers' name of it."""

_PIP = {"optimum.quanto": "optimum-quanto", "compressed_tensors": "compressed-tensors"}

_SHORT: Mapping[str, Mapping[str, Any]] = {"4bit": {"load_in_4bit": True}, "8bit": {"load_in_8bit": True}}


def read_config(folder: Path) -> Any:
    """The model's configuration. Raises `UnsupportedModel` for a kind that transformers does not know."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise UnsupportedModel(
            f"transformers {transformers.__version__} does not know the model in {folder} ({one_line(error)}): update "
            "transformers, or use another model"
        ) from error
    return config


def weight_bytes(folder: Path) -> int:
    """Bytes of the folder's weights as stored."""
    return sum(file.stat().st_size for file in (*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")))


def quantisation_of(config: Any, given: Any) -> Any:
    """What quantises the model: ``given`` (4bit, 8bit, or a configuration of transformers), else its own; or None.

    Raises `UnsupportedModel` with the line that installs what it needs, `InvalidRequest` for another word.
    """
    if isinstance(given, str | Mapping):
        if not isinstance(given, str) or given not in _SHORT:
            raise InvalidRequest(
                f"quantization must be 4bit, 8bit or a configuration object, not {given!r}", "quantization"
            )
        _need("bitsandbytes")  # before its configuration is made, which asks for the package's version
        given = transformers.BitsAndBytesConfig(**_SHORT[given])
    chosen = given if given is not None else getattr(config, "quantization_config", None)
    if chosen is None:
        return None
    method = chosen.get("quant_method") if isinstance(chosen, Mapping) else getattr(chosen, "quant_method", "")
    _need(str(getattr(method, "value", method)))
    return chosen


def _need(name: str) -> None:
    """Raises `UnsupportedModel` with the line that installs what the quantisation method ``name`` wants."""
    missing = [_PIP.get(package, package) for package in _NEEDS.get(name, ()) if not _there(package)]
    if missing:
        raise UnsupportedModel(
            f"a model quantised by {name} needs {' and '.join(missing)}: pip install {' '.join(missing)}"
        )


def load_model(
    folder: Path,
    *,
    device: Any,
    dtype: Any,
    quantisation: Any,
    adapter: str | None,
    kind: Any = AutoModelForCausalLM,
    log: Callable[[str], None] | None = None,
) -> Any:
    """The model on ``device``, in evaluation mode. ``kind``: transformers' class that loads such models; ``log`` gets
    what of the files it has no place for.

    Raises `ModelError`, `TargetError` when the device is full.
    """
    options: dict[str, Any] = {"dtype": dtype, "ignore_mismatched_sizes": True}  # they are refused below, by name
    if quantisation is not None:
        options["device_map"] = {"": device}
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of each product that it rounds
        if not isinstance(quantisation, Mapping):  # the stored one, which transformers reads by itself
            options["quantization_config"] = quantisation
    try:
        with _quietly():
            model, info = kind.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, output_loading_info=True, **options
            )
            if quantisation is None:
                model.to(device)
    except Exception as error:
        raise _refusal(error, folder, device) from error
    _check_weights(info, folder)
    if log and (unused := sorted(info.get("unexpected_keys", ()))):
        log(f"{len(unused)} stored weights have no place in the model, such as {unused[0]}: they are left out")
    model = model.eval()
    return model if adapter is None else adapted(model, adapter, merge=quantisation is None)


def _refusal(error: Exception, folder: Path, device: Any) -> SoonerError:
    """What went wrong in transformers, in our words."""
    if out_of_memory(error):
        return TargetError(
            f"{device} is full before {folder} is loaded: use a quantised or smaller model, or --device cpu"
        )
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    told = first if isinstance(error, ImportError) and isinstance(first, Exception) else error
    reason = one_line(told) if " " in one_line(told) else f"{type(told).__name__}: {one_line(told)}"
    if isinstance(error, ImportError):
        return UnsupportedModel(
            f"transformers cannot import what runs {folder} ({reason}): install the package it names, or one that fits "
            f"torch {torch.__version__}"
        )
    kind = CorruptModel if "safetensor" in type(error).__name__.lower() else UnsupportedModel
    return kind(f"transformers cannot load {folder} ({reason}); check its files or use another model")


def _check_weights(info: Mapping[str, Any], folder: Path) -> None:
    """Raises `CorruptModel` where the files hold other weights than the configuration says."""
    if mismatched := sorted(info.get("mismatched_keys", ())):
        name, *shapes = mismatched[0] if isinstance(mismatched[0], tuple) else (mismatched[0],)  # version 4's are names
        told = " instead of ".join(" x ".join(map(str, shape)) for shape in shapes)
        raise CorruptModel(
            f"{folder} holds {len(mismatched)} weights of another shape than its config.json says, such as {name}"
            f"{told and f' ({told})'}; copy both again from the model's page"
        )
    if missing := sorted(info.get("missing_keys", ())):
        raise CorruptModel(
            f"{folder} lacks {len(missing)} of the model's weights, such as {missing[0]}; copy it again from its page"
        )


def _there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def _quietly() -> Iterator[None]:
    """No bars on standard error while weights are read; what goes wrong is an exception or in the loading info."""
    theirs = transformers.utils.logging
    level, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        with torch.no_grad():
            yield
    finally:
        theirs.set_verbosity(level)
        if bars:
            theirs.enable_progress_bar()
