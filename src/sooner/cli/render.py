"""How a step looks in a terminal: what was drafted, what was kept, what the target wrote itself.

Knows steps and tokens' texts. Does not know models or commands.

Marks carry the meaning, colours repeat it: ``[accepted]`` ``~rejected~`` ``+the target's own+``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from rich.table import Table
from rich.text import Text

from sooner.types import ROOT, Step

if TYPE_CHECKING:
    from sooner.completion import Completion

__all__ = ["Reading", "decisions", "figures", "legend", "piece", "step_row"]

_ACCEPTED, _REJECTED, _OWN, _UNUSED = "green", "red", "bold cyan", "dim"
_SHOWN = {"\n": "↵", "\t": "⇥", "\r": "␍"}


class Reading(Protocol):
    """How tokens read: a tokenizer (`text.TextCodec`), or a trace's pieces."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """What token ``id`` adds to the text."""
        ...


def piece(codec: Reading, token: int) -> str:
    """A token as one can read it on one line: control characters as symbols, bytes of split characters in hex."""
    data = codec.token_bytes(token)
    if not data:
        return "<end>" if token in codec.eos_ids else f"<{token}>"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in data)
    return "".join(_SHOWN.get(c, c if c.isprintable() else f"<{ord(c):02X}>") for c in text)


def legend() -> Text:
    """What the marks mean."""
    return Text.assemble(
        ("[accepted]", _ACCEPTED), "  ", ("~rejected~", _REJECTED), "  ", ("+the target's own token+", _OWN)
    )


def step_row(codec: Reading, step: Step, *, number_width: int = 4) -> Table:
    """One step as a row: its number, the decisions, how much of the draft was kept, milliseconds."""
    row = Table.grid(expand=True, padding=(0, 1, 0, 0))
    row.add_column(width=number_width, justify="right", style="dim")
    row.add_column(ratio=1, overflow="fold")
    row.add_column(width=5, justify="right", style="dim")
    row.add_column(width=8, justify="right", style="dim")
    kept = f"{step.accepted}/{len(step.draft)}" if len(step.draft) else "-"
    row.add_row(str(step.index), decisions(codec, step), kept, f"{_total_ms(step):.1f} ms")
    return row


def decisions(codec: Reading, step: Step) -> Text:
    """The step's draft with every node marked, and the target's own token: a line for a chain, else a drawing."""
    marked = _Marked(codec, step)
    if all(parent == node - 1 for node, parent in enumerate(step.draft.parents)):
        return Text(" ").join(marked.chain())
    return Text("\n").join(marked.tree(ROOT, "", first=True))


class _Marked:
    """A step's nodes as marked texts."""

    def __init__(self, codec: Reading, step: Step) -> None:
        self._codec = codec
        self._step = step
        self._end = step.path[-1] if step.path else ROOT

    def node(self, node: int) -> Text:
        text = piece(self._codec, self._step.draft.tokens[node])
        if node in self._step.path:
            return Text(f"[{text}]", style=_ACCEPTED)
        return Text(f"~{text}~", style=_REJECTED)

    def own(self) -> list[Text]:
        """The target's own token: the last emitted one, unless the text ended inside the draft."""
        emitted = self._step.tokens
        if len(emitted) <= len(self._step.path):
            return []
        return [Text(f"+{piece(self._codec, emitted[-1])}+", style=_OWN)]

    def chain(self) -> list[Text]:
        """What was kept, what was refused after it, and what stands in its place."""
        return [self.node(node) for node in range(len(self._step.draft))] + self.own()

    def below(self, node: int) -> list[int | None]:
        """The children of ``node``, then None where the target's own token stands."""
        own: list[int | None] = [None] if node == self._end and self.own() else []
        return [*self._step.draft.children(node), *own]

    def tree(self, node: int, indent: str, *, first: bool = False) -> Iterator[Text]:
        """Lines for everything below ``node``; runs without branches share a line."""
        children = self.below(node)
        for i, child in enumerate(children):
            last = i == len(children) - 1
            alone = first and len(children) == 1
            marks, at = self._run(child)
            yield Text("" if alone else indent + ("└─ " if last else "├─ "), style=_UNUSED) + Text(" ").join(marks)
            if at is not None:
                yield from self.tree(at, "" if alone else indent + ("   " if last else "│  "))

    def _run(self, child: int | None) -> tuple[list[Text], int | None]:
        """``child`` and what follows it up to the next branching; the node to go on from, if any."""
        marks: list[Text] = []
        while child is not None:
            marks.append(self.node(child))
            following = self.below(child)
            if len(following) != 1:
                return marks, child if following else None
            child = following[0]
        return marks + self.own(), None


def figures(completion: Completion, steps: Sequence[Step]) -> list[str]:
    """What the steps come to, in words."""
    drafting, count = completion.speculation, max(1, len(steps))
    parts = {
        "drafting": sum(step.draft_ms for step in steps),
        "the model's pass": sum(step.score_ms for step in steps),
        "verifying": sum(step.verify_ms for step in steps),
        "the rest": sum(step.overhead_ms for step in steps),
    }
    tokens = completion.usage.completion_tokens
    lines = [
        f"{len(steps)} passes wrote {tokens} tokens; after the first, {drafting.acceptance_length:.2f} tokens a pass",
        f"{drafting.accepted} of {drafting.drafted} drafted tokens were accepted (drafter {drafting.drafter}, "
        f"rule {drafting.verify}{'' if drafting.lossless else ', LOSSY'})",
        "milliseconds a pass: " + ", ".join(f"{name} {value / count:.1f}" for name, value in parts.items()),
    ]
    return lines


def _total_ms(step: Step) -> float:
    return step.draft_ms + step.score_ms + step.verify_ms + step.overhead_ms
