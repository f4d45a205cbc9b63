"""What a session's record keeps of how its output is delivered."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import limits
from outrider.core.errors import InternalError, UnavailableError
from outrider.gateway.presentation import Presentation, digest_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
PRESENTATIONS = st.builds(
    Presentation,
    operation=st.sampled_from(["", "chat", "text_completion"]),
    created=st.integers(0, 2**40),
    digest=st.sampled_from(["", "ab" * 32]),
    stop=st.lists(TEXTS, max_size=limits.MAX_STOP_STRINGS).map(tuple),
    include_stop=st.booleans(),
    min_tokens=st.integers(0, 2**31),
    skip_special_tokens=st.booleans(),
    logprobs=st.booleans(),
)


@given(PRESENTATIONS)
def test_what_was_noted_is_read_back(presentation):
    assert Presentation.decode(presentation.encode()) == presentation


@given(PRESENTATIONS)
def test_its_digest_is_found_in_it_as_it_is_kept(presentation):
    for one in (presentation, replace(presentation, stop=("x" * limits.MAX_PRESENTATION_BYTES,))):
        assert one.digest.encode() in one.encode()
        assert Presentation.decode(one.encode()) == one


@pytest.mark.parametrize("first", [0x10000, 0x1, 0x800])
def test_the_longest_stop_strings_fit(first):
    length, count = limits.MAX_STOP_STRING_CHARS, limits.MAX_STOP_STRINGS
    texts = [
        "".join(chr(first + (7919 * (n * length + i)) % 30) for i in range(length)) for n in range(count)
    ]
    presentation = Presentation(stop=tuple(texts))
    assert len(presentation.encode()) <= limits.MAX_PRESENTATION_BYTES
    assert Presentation.decode(presentation.encode()) == presentation


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_stop_strings_fit_however_random_they_are(seed):
    draw = random.Random(seed)
    length, count = limits.MAX_STOP_STRING_CHARS, limits.MAX_STOP_STRINGS
    texts = ["".join(chr(draw.randrange(0x10000, 0x110000)) for _ in range(length)) for _ in range(count)]
    assert len(Presentation(stop=tuple(texts)).encode()) <= limits.MAX_PRESENTATION_BYTES


def test_a_session_that_no_gateway_started_is_plain_text():
    assert Presentation.decode(b"") == Presentation()


@pytest.mark.parametrize(
    "note", [b"{", b"[]", b"{}", b'{"v":1,"more":2}', b"x", b"\xff\xfe", b'{"v":"1"}', b"\x78\x9c\x00"]
)
def test_a_broken_note_is_a_defect(note):
    with pytest.raises(InternalError, match="note about the delivery"):
        Presentation.decode(note)


def test_a_note_of_a_newer_gateway_is_left_to_one():
    with pytest.raises(UnavailableError, match="newer gateway"):
        Presentation.decode(b'{"v":2}')


def test_the_digest_tells_bodies_and_prompts_apart():
    digests = {digest_of(body, ids) for body in (b"a", b"b") for ids in ([1], [2], [1, 2], [1, 0])}
    assert len(digests) == 8
    assert digest_of(b"", [1]) == ""
