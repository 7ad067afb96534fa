"""The process that reads a model's weights for `import_model`: apart, so that its memory and its crashes stay there.

Knows OpenVINO's GGUF reader and optimum-intel. Does not know the cache. Run as ``python -m sooner.store.worker``;
it ends when its parent does.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """``quick GGUF`` writes the IR beside the file; ``convert FOLDER OUT`` exports a Hugging Face folder to OUT;
    ``expand GGUF OUT`` writes the weights of a GGUF file as a Hugging Face folder's safetensors.
    """
    threading.Thread(target=_die_with_parent, daemon=True).start()
    road, paths = arguments[0], [Path(argument) for argument in arguments[1:]]
    roads: dict[str, Callable[..., None]] = {"quick": _quick, "convert": _convert, "expand": _expand}
    roads[road](*paths)


def _die_with_parent() -> None:
    # The parent holds the other end of our standard input; when it is gone there is nobody to finish for.
    # (os.read, because a thread that waits inside sys.stdin makes the interpreter abort at exit.)
    os.read(0, 1)
    os._exit(1)


def _quick(gguf: Path) -> None:
    import openvino_genai

    try:
        openvino_genai.LLMPipeline(str(gguf), "CPU", enable_save_ov_model=True)
    except Exception:
        # The model is written before the tokenizer is read, and SentencePiece tokenizers are refused. We make our own.
        xml = gguf.with_name("openvino_model.xml")
        if not (xml.is_file() and xml.read_bytes().rstrip().endswith(b"</net>")):
            raise


def _expand(gguf: Path, out: Path) -> None:
    from sooner.store.gguf_weights import write_safetensors

    write_safetensors(gguf, out)


def _convert(folder: Path, out: Path) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # optimum-intel demands torchvision, whose usual build does not load beside a CPU build of torch, and text models
    # have no use for it.
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # how Python spells "cannot be imported"
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    compression = OVWeightQuantizationConfig(bits=8, sym=False)
    model = OVModelForCausalLM.from_pretrained(
        folder, export=True, compile=False, quantization_config=compression, trust_remote_code=False
    )
    model.save_pretrained(out)
    if not (folder / "tokenizer.json").is_file():
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(folder).save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1:])
