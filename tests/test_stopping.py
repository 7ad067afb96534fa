"""Stop strings: the result does not depend on how the text is cut, and equals a search over the whole."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sooner.stopping import StopStrings

texts = st.text(alphabet="abé😀", max_size=30)
stops = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3).map(tuple)


def reference(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return (text[:end] if include else text[: end - len(longest)]), longest
    return text, None


@given(text=texts, stops=stops, include=st.booleans(), cuts=st.lists(st.integers(0, 30)))
def test_any_cutting_gives_the_text_before_the_first_match(
    text: str, stops: tuple[str, ...], include: bool, cuts: list[int]
) -> None:
    finder = StopStrings(stops, include=include)
    edges = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    out = "".join(finder.push(text[a:b]) for a, b in itertools.pairwise(edges))
    assert reference(text, stops, include)[0].startswith(out)  # nothing is ever emitted that must be taken back
    assert (out + finder.flush(), finder.matched) == reference(text, stops, include)


def test_what_cannot_become_a_stop_string_is_not_held_back() -> None:
    finder = StopStrings(("stop",))
    assert finder.push("go on s") == "go on "
    assert finder.push("t") == ""
    assert finder.push("art") == "start"
