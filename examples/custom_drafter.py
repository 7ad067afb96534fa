"""A drafter of your own: `python examples/custom_drafter.py`.

A drafter is any class that fits `sooner.Drafter`; it may be wrong, and cannot change the text. To use it by name,
as in `sooner run --draft phrases`, register it in your package's pyproject.toml:

    [project.entry-points."sooner.drafters"]
    phrases = "custom_drafter:PhraseDrafter"
"""

from collections.abc import Sequence

import sooner
from sooner.text import TextCodec
from sooner.tree import chain


class PhraseDrafter:
    """Knows phrases by heart and drafts the rest of one as soon as it has begun."""

    name = "phrases"

    def __init__(self, *, codec: TextCodec, phrase: str = "The quick brown fox jumps over the lazy dog.") -> None:
        self._phrase = codec.encode(phrase, bos=False)

    def propose(self, contexts: Sequence[sooner.Context]) -> list[sooner.Draft]:
        """The rest of the phrase, where the text ends with its beginning."""
        return [chain(self._rest(context.tokens)[: context.budget], 0.8, self.name) for context in contexts]

    def observe(self, step: sooner.Step, rows: sooner.Rows) -> None:
        """Nothing to learn."""

    def forget(self, id: int) -> None:
        """Nothing was kept."""

    def _rest(self, tokens: Sequence[int]) -> list[int]:
        for known in range(len(self._phrase) - 1, 0, -1):
            if list(tokens[-known:]) == self._phrase[:known]:
                return self._phrase[known:]
        return []


if __name__ == "__main__":
    engine = sooner.load(draft=None)
    engine.drafter = PhraseDrafter(codec=engine.codec)
    answer = engine.generate(
        "Make this text all lower case: The Quick Brown Fox Jumps Over The Lazy Dog.", max_tokens=32
    )
    print(answer.text)
    print(f"{answer.speculation.accepted} of {answer.speculation.drafted} drafted tokens kept")
