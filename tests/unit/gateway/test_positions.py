"""Ids of events: what a client says that it has, and what is news to it then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import InvalidRequestError
from outrider.gateway.openai.positions import FIELD, Positions
from outrider.wire.messages import GenerationDelta

RESPONSE = f"cmpl-{'0123456789abcdef' * 2}"


def told(positions: Positions, event) -> bool:
    kind, index, *rest = event
    if kind == "begin":
        return positions.begin(index)
    if kind == "deliver":
        first, count = rest
        return positions.deliver(index, GenerationDelta("", (0,) * count, 0, first))
    if kind == "close":
        return positions.close(index)
    return positions.tell_usage()


@st.composite
def streams(draw):
    """Number of choices, and the events of a whole answer as they may come."""
    choices = draw(st.integers(1, 3))
    waiting = []
    for index in range(choices):
        counts = draw(st.lists(st.integers(1, 3), max_size=4))
        firsts = [sum(counts[:number]) for number in range(len(counts))]
        own = [("begin", index), *(("deliver", index, *pair) for pair in zip(firsts, counts, strict=True))]
        if draw(st.booleans()):
            own.append(("deliver", index, sum(counts), 0))
        waiting.append([*own, ("close", index)])
    events = []
    while any(waiting):
        events.append(draw(st.sampled_from([own for own in waiting if own])).pop(0))
    return choices, [*events, ("usage", 0)]


@given(streams(), st.data())
def test_cut_behind_any_event_exactly_the_rest_is_news(stream, data):
    choices, events = stream
    positions = Positions.at_start(RESPONSE, choices)
    place = data.draw(st.integers(0, len(events)))
    assert all(told(positions, event) for event in events[:place])
    again = Positions.parse(str(positions), prefix="cmpl", choices=choices)
    assert str(again) == str(positions)
    assert again.delivered == positions.delivered
    replayed = data.draw(st.permutations(range(choices)))  # choices need not come in the same order again
    ordered = sorted(range(len(events) - 1), key=lambda place: replayed.index(events[place][1]))
    for number in [*ordered, len(events) - 1]:
        assert told(again, events[number]) == (number >= place)


def test_ids_are_made_of_tokens_and_of_what_is_behind_them():
    positions = Positions.at_start(RESPONSE, 3)
    assert str(positions) == f"{RESPONSE}/-,-,-"
    positions.begin(0)
    positions.begin(2)
    positions.deliver(2, GenerationDelta("ab", (1, 2), 0, 0))
    assert str(positions) == f"{RESPONSE}/0,-,2"
    assert positions.delivered == [0, None, 2]
    positions.deliver(2, GenerationDelta("c", (), 0, 2))
    assert str(positions) == f"{RESPONSE}/0,-,2+"
    positions.close(2)
    positions.tell_usage()
    assert str(positions) == f"{RESPONSE}/0,-,2!/usage"
    assert [positions.session_id(index) for index in range(3)] == [RESPONSE, f"{RESPONSE}.1", f"{RESPONSE}.2"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        RESPONSE,
        f"{RESPONSE}/",
        f"{RESPONSE}/1,",
        f"{RESPONSE}/1-",
        f"{RESPONSE}/1+!",
        f"{RESPONSE}/-!",
        f"{RESPONSE}/1,1",
        f"{RESPONSE}/1/more",
        f"chat{RESPONSE}/1",
        f"{RESPONSE}/٣",
        f"{RESPONSE}/1\n",
        "9" * 99,
    ],
)
def test_what_is_no_id_is_refused_by_the_name_of_the_header(text):
    with pytest.raises(InvalidRequestError) as caught:
        Positions.parse(text, prefix="cmpl", choices=1)
    assert caught.value.field == FIELD


@given(st.text(max_size=60))
def test_any_text_is_an_id_or_is_refused(text):
    try:
        positions = Positions.parse(f"{RESPONSE}/{text}", prefix="cmpl", choices=1)
    except InvalidRequestError:
        return
    assert positions.delivered == Positions.parse(str(positions), prefix="cmpl", choices=1).delivered
