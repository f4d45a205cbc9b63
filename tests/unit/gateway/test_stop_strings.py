"""Stop strings: the same outcome however the text is cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from outrider.gateway.stop_strings import StopMatcher

LETTERS = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    text = "".join(matcher.push(piece) for piece in pieces)
    return text + matcher.flush(), matcher.hit


def reference(stops: list[str], text: str, *, after: int = 0, include: bool = False) -> tuple[str, bool]:
    """By definition: the first end of any stop string past `after` characters, the longest there."""
    for end in range(after + 1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - (0 if include else max(lengths))], True
    return text, False


@given(stops=STOPS, text=LETTERS, cuts=st.lists(st.integers(0, 40)))
def test_any_cut_gives_the_defined_outcome(stops, text, cuts):
    marks = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in itertools.pairwise(marks)]
    assert run(stops, pieces) == reference(stops, text)


@given(stops=STOPS, text=LETTERS, after=st.integers(0, 30), include=st.booleans(), data=st.data())
def test_included_or_not_it_counts_if_it_is_complete_late_enough(stops, text, after, include, data):
    cuts = data.draw(st.lists(st.integers(0, 40)))
    marks = sorted({0, len(text), min(after, len(text)), *(min(cut, len(text)) for cut in cuts)})
    matcher = StopMatcher(stops, include=include)
    given = "".join(
        matcher.push(text[start:end], counts=start >= after) for start, end in itertools.pairwise(marks)
    )
    assert (given + matcher.flush(), matcher.hit) == reference(stops, text, after=after, include=include)


@given(stops=STOPS.filter(bool), text=LETTERS)
def test_what_was_delivered_never_has_to_be_taken_back(stops, text):
    matcher = StopMatcher(stops)
    final, _ = reference(stops, text)
    delivered = ""
    for char in text:
        delivered += matcher.push(char)
        assert final.startswith(delivered)


@given(stops=STOPS.filter(bool), text=LETTERS)
def test_no_more_is_held_than_may_be_a_stop_string(stops, text):
    matcher = StopMatcher(stops)
    delivered = "".join(matcher.push(char) for char in text)
    held = matcher.flush()
    if not matcher.hit:
        assert delivered + held == text
        assert not held or any(stop.startswith(held) for stop in stops)


def test_without_stop_strings_nothing_is_held():
    assert StopMatcher([]).push("any text") == "any text"


def test_characters_of_other_scripts():
    assert run(["終わり"], ["これで", "終わ", "りです"]) == ("これで", True)
    assert run(["👩‍👧"], ["👩", "\u200d", "👦"]) == ("👩\u200d👦", False)
