"""Layer skipping on a model where it pays: the default model with layers inserted that add next to nothing.

Everything interleaved in one process (A B A B), texts asserted identical. ``python benchmarks/layerskip.py [FOLDER]``
keeps the deepened model in FOLDER.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from common import keep, prompts
from core import as_dict, seconds

import sooner
from sooner.bench import ratio
from sooner.control.fixed import FixedController
from sooner.draft.layerskip import LayerSkipDrafter
from sooner.engine import Engine
from sooner.loading import make_drafter

INSERTED = 2
"""Layers behind each of the model's own."""

PART = 0.01
"""What an inserted layer adds, of what the layer it is a copy of adds."""

CATEGORIES = ("writing", "qa", "translation", "coding", "summarization", "roleplay")


def deepen(source: Path, path: Path, inserted: int = INSERTED, part: float = PART) -> Path:
    """Write ``source`` with ``inserted`` near-identities behind each layer; its matrices must be Q4_1."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(str(path), "llama")
    layers = int(reader.fields["llama.block_count"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "llama.block_count"):
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    writer.add_block_count(layers * (inserted + 1))
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk."):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        _, layer, rest = tensor.name.split(".", 2)
        for copy in range(inserted + 1):
            data = tensor.data
            if copy and rest in ("attn_output.weight", "ffn_down.weight"):
                data = scaled(data, part)
            writer.add_tensor(f"blk.{int(layer) * (inserted + 1) + copy}.{rest}", data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def scaled(data: Any, part: float) -> Any:
    """Q4_1 rows times ``part``: each block of 20 bytes begins with its scale and its offset, in half precision."""
    blocks = np.array(data).reshape(len(data), -1, 20)
    heads = np.ascontiguousarray(blocks[:, :, :4]).view(np.float16)
    blocks[:, :, :4] = (heads.astype(np.float32) * part).astype(np.float16).view(np.uint8)
    return blocks.reshape(data.shape)


def private_mb() -> float:
    """Memory that is this process's alone, in MB: model files mapped into memory do not count."""
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) / 1024
    return 0.0


def compare(engine: Engine, skip: str, rounds: int = 3) -> dict[str, Any]:
    """Plain decoding against layer skipping, alone and with the default drafters, in turns on each prompt."""
    before = private_mb()
    alone = LayerSkipDrafter(engine.target, skip=skip, eos_ids=tuple(engine.codec.eos_ids))
    after = private_mb()
    goodput = engine.controller
    together = make_drafter(
        ["suffix", "recycle", f"layerskip:skip={skip}"], engine.target, engine.codec, engine.fingerprint["model"]
    )
    kinds: dict[str, Any] = {"plain": None, "layerskip": alone, "with_default_drafters": together}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    lengths: list[float] = []
    for turn in range(rounds + 1):
        for category, (text,) in prompts(1).items():
            if category not in CATEGORIES:
                continue
            texts: dict[str, Sequence[int]] = {}
            for name, drafter in kinds.items():
                engine.drafter = drafter
                engine.controller = FixedController(8) if name == "layerskip" else goodput
                spent, answer = seconds(engine, text, drafting=drafter is not None, tokens=96)
                texts[name] = answer.token_ids
                if turn:  # the first round warms all of them up
                    times[name].append(spent)
                    lengths += [answer.speculation.acceptance_length] if name == "layerskip" else []
            assert len(set(map(tuple, texts.values()))) == 1, f"{category}: the texts differ"
    weights = engine.target.plan.weights / 2**20  # type: ignore[attr-defined] # the OpenVINO target has a plan
    return {
        "skip": skip,
        "layerskip_over_plain_speed": as_dict(ratio(times["plain"], times["layerskip"])),
        "with_default_drafters_over_plain_speed": as_dict(ratio(times["plain"], times["with_default_drafters"])),
        "acceptance_length": float(np.mean(lengths)),
        "weights_mb": weights,
        "further_private_mb": after - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="where the deepened model is kept (default: nowhere)")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    from sooner.store.default import default_gguf

    with tempfile.TemporaryDirectory() as nowhere:
        folder = chosen.folder or Path(nowhere)
        path = folder / "deepened.gguf"
        if not path.exists():
            deepen(default_gguf(offline=False, say=print), path)
        engine = sooner.load(str(path), draft=None)
        layers = 30 * (INSERTED + 1)
        own = range(0, layers, INSERTED + 1)
        skip = "+".join(f"{first + 1}-{first + INSERTED}" for first in own)
        result = compare(engine, skip, chosen.rounds)
    print(result)
    keep("layerskip", {"inserted": INSERTED, "part": PART, "layers": layers, **result})


if __name__ == "__main__":
    main()
