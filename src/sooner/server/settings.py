"""What a server is told when it starts: names, keys, limits, deadlines. Knows numbers and what each one bounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sooner.trace.folder import TraceFolder

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One server's limits and rules.

    ``keys``: API keys, any of which opens ``/v1`` and ``/metrics``; none = open to whoever reaches the port.
    ``hosts``: names by which the server may be addressed (a page elsewhere cannot then reach a server on this machine
    by renaming itself); None = any. ``verify``: the verification rule of every request. ``draft_kinds``: what a
    request's ``draft`` may name. ``max_running``: choices decoded side by side, as the engine was
    told; ``max_waiting``: choices queued beyond those, and heavy bodies that wait to be read. ``timeout_s``: most
    seconds from a request to the end of its answer; ``read_timeout_s``: most seconds until a request's head is there,
    and until its body is; ``write_timeout_s``: most seconds a reader may leave a chunk untaken;
    ``drain_s``: seconds that running answers get after SIGTERM. ``max_body``: bytes of one request; None = 1 MB, and
    32 MB where the model takes pictures or sounds (at the door of replicas 1 MB). ``max_prompt_tokens``: None = the
    model's context. ``max_n``, ``max_prompts``, ``max_top_logprobs``, ``max_stops``: what one request may ask for.
    ``log_prompts``: whether prompts and answers may be logged, and prompts be in ``traces``, the folder that gets a
    trace of every request. ``report_s``: seconds between log lines under load. ``pictures``: the folder
    whose files messages may show by ``file:`` URL; None = pictures come in the body alone.
    """

    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    verify: str = "coupled"
    draft_kinds: tuple[str, ...] = ("given", "ngram", "recycle", "suffix", "table")
    max_running: int = 8
    max_waiting: int = 64
    timeout_s: float = 600.0
    read_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    drain_s: float = 30.0
    max_body: int | None = None
    max_prompt_tokens: int | None = None
    max_n: int = 16
    max_prompts: int = 16
    max_top_logprobs: int = 20
    max_stops: int = 16
    log_prompts: bool = False
    report_s: float = 10.0
    traces: TraceFolder | None = None
    pictures: Path | None = None

    def body_limit(self, *, files: bool) -> int:
        """Bytes that a request may have, where the model takes ``files`` (pictures, sounds) or does not."""
        return self.max_body if self.max_body is not None else (32 << 20 if files else 1 << 20)
