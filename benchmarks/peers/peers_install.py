"""Puts each peer into an environment of its own, and writes the model in the form that some of them read.

Knows pip, and sooner's reader of GGUF files. Does not know how a peer is run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from peers_catalogue import OWN, PEERS, Peer

__all__ = ["expanded", "home", "install", "obstacle", "python_of"]

_EXPAND = """
import sys
from pathlib import Path
from sooner.store.folder import write_settings
from sooner.store.gguf_config import hugging_face_config
from sooner.store.gguf_file import read_gguf
from sooner.store.gguf_tokenizer import tokenizer_json, vocabulary
from sooner.store.gguf_weights import write_safetensors

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
gguf = read_gguf(source)
words = vocabulary(gguf)
template = gguf.get("tokenizer.chat_template", str)
write_settings(folder, hugging_face_config(gguf, words), words, tokenizer_json(gguf, words), template)
write_safetensors(source, folder)
(folder / "done").touch()
"""


def home() -> Path:
    """Where environments, logs and expanded weights are kept: ``SOONER_PEERS``, else in the cache directory."""
    from sooner.store.cache import cache_dir

    chosen = os.environ.get("SOONER_PEERS")
    return Path(chosen) if chosen else cache_dir("peers")


def python_of(peer: Peer) -> Path:
    """The interpreter that runs the peer."""
    return Path(sys.executable) if peer.name == OWN else home() / "venvs" / peer.name / "bin" / "python"


def install(peer: Peer) -> None:
    """Make the peer's environment unless it is there. What goes wrong is kept as `obstacle`."""
    if peer.name == OWN or _done(peer).is_file():
        return
    folder = home() / "venvs" / peer.name
    refused = folder.with_suffix(".refused")
    refused.unlink(missing_ok=True)
    refused.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PATH": f"{python_of(peer).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    pip = [str(python_of(peer)), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    problems = []
    for packages in peer.packages:
        found = subprocess.run(
            [*pip, "install", *packages], stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
        if found.returncode:
            errors = [line for line in found.stderr.splitlines() if line.startswith("ERROR")] or ["no reason given"]
            problems.append(f"{packages[-1]}: {errors[0]}"[:200])
    if peer.remove:
        subprocess.run([*pip, "uninstall", "--yes", *peer.remove], check=True)
    if problems:
        refused.write_text("\n".join(problems), encoding="utf-8")
        print(f"{peer.name}: {'; '.join(problems)}", file=sys.stderr)
    if not problems or len(problems) < len(peer.packages):  # some of its variants may do without the rest
        _done(peer).touch()


def obstacle(peer: Peer) -> str | None:
    """Why the peer cannot be run, if its environment is not there."""
    if peer.name == OWN or _done(peer).is_file():
        return None
    refused = (home() / "venvs" / peer.name).with_suffix(".refused")
    if refused.is_file():
        return f"not installed: {refused.read_text(encoding='utf-8').splitlines()[0]}"
    return "not installed: run compare.py install"


def _done(peer: Peer) -> Path:
    return home() / "venvs" / peer.name / "installed"


def expanded(gguf: Path) -> Path:
    """A Hugging Face folder of the GGUF file's weights, dequantised to float16, which loses nothing of 4 bits times a
    half-precision scale but the last rounding; written once, by the environment of transformers."""
    folder = home() / "weights" / gguf.stem
    writer = next(peer for peer in PEERS if peer.name == "transformers")
    if not (folder / "done").is_file() and obstacle(writer) is None:
        source = Path(__file__).parents[2] / "src"
        environment = {**os.environ, "PYTHONPATH": str(source)}
        command = [str(python_of(writer)), "-c", _EXPAND, str(gguf), str(folder)]
        subprocess.run(command, check=True, env=environment)
    return folder
