"""Fetches models from the Hugging Face hub into Hugging Face's own cache (``HF_HOME``), by its own client.

Knows which files of a repository are wanted. Does not know what is done with them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from sooner.errors import ModelNotFound
from sooner.store.folder import IR

__all__ = ["choose_gguf", "fetch"]

_TEXTS = ["*.json", "*.jinja", "tokenizer.model"]
_TIMEOUT_S = 15.0
_PREFERRED = ("Q4_K_M", "Q8_0", "Q4_0", "Q4_1", "F16")


def fetch(repo: str, quant: str | None, *, offline: bool, say: Callable[[str], None], ir: bool = True) -> Path:
    """The path of the GGUF file or model folder of ``repo`` in the Hugging Face cache, fetched there if needed.

    ``quant`` picks one GGUF file. Otherwise an OpenVINO export is preferred to safetensors (not without ``ir``), and
    those to GGUF.
    If the hub cannot be reached, what is in the cache is used. Raises `ModelNotFound`.
    """
    try:
        return _fetch(repo, quant, local=offline, say=say, ir=ir)
    except ModelNotFound:
        raise
    except Exception as error:  # the client raises its own, requests', httpx's and the system's errors
        if not offline and _unreachable(error):
            with contextlib.suppress(Exception):
                path = _fetch(repo, quant, local=True, say=lambda _: None, ir=ir)
                say(f"the Hugging Face hub cannot be reached; using the cached {repo}")
                return path
        _explain(repo, offline, error)


def _fetch(repo: str, quant: str | None, *, local: bool, say: Callable[[str], None], ir: bool) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    names = [name for name in (_cached(repo) if local else _listed(repo)) if ir or name != IR]
    ggufs = [name for name in names if name.endswith(".gguf")]
    if quant or (ggufs and IR not in names and not any(name.endswith(".safetensors") for name in names)):
        chosen = choose_gguf(repo, ggufs, quant)
        say(f"fetching {repo} ({chosen}) from Hugging Face")
        return Path(hf_hub_download(repo, chosen, local_files_only=local))
    wanted = [*_TEXTS, "*.xml", "*.bin"] if IR in names else [*_TEXTS, "*.safetensors"]
    say(f"fetching {repo} from Hugging Face")
    return Path(snapshot_download(repo, allow_patterns=wanted, local_files_only=local))


def choose_gguf(repo: str, names: Sequence[str], quant: str | None) -> str:
    """The file of ``names`` in quantisation ``quant`` (any if None). Raises `ModelNotFound` listing what there is."""
    kinds = {name: _kind(name) for name in sorted(names)}
    for wanted in [quant] if quant else _PREFERRED:
        for name, kind in kinds.items():
            if kind == wanted.upper():
                return name
    there = ", ".join(sorted({kind for kind in kinds.values() if kind})) or "none"
    raise ModelNotFound(f"{repo} has no GGUF file in {quant or 'a usual quantisation'}; it has: {there}")


def _kind(name: str) -> str:
    stem = name.upper().removesuffix(".GGUF")
    found = re.findall(r"(?:^|[-._/])(I?Q\d\w*|BF16|FP?16|FP?32)(?=[-._]|$)", stem)
    return str(found[-1]) if found else ""


def _listed(repo: str) -> list[str]:
    from huggingface_hub import model_info

    # Unlike list_repo_files this asks once: without a network the answer is quick.
    return [file.rfilename for file in model_info(repo, timeout=_TIMEOUT_S).siblings or ()]


def _cached(repo: str) -> list[str]:
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(repo, local_files_only=True))
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def _unreachable(error: Exception) -> bool:
    kind = type(error).__name__
    return "NotFound" not in kind and "Gated" not in kind


def _explain(repo: str, offline: bool, error: Exception) -> NoReturn:
    if offline:
        raise ModelNotFound(
            f"{repo} is no folder here, nor in the Hugging Face cache; run once without --offline"
        ) from error
    kind = type(error).__name__
    if "Gated" in kind:
        why = "access to it must be requested on its page; then log in with `hf auth login`"
    elif "NotFound" in kind:
        why = "there is no such model, or it needs `hf auth login`; check the name"
    else:
        why = f"the hub cannot be reached ({kind}); check the network, or give a path to a local model"
    raise ModelNotFound(f"{repo} is no folder here and cannot be fetched: {why}") from error
