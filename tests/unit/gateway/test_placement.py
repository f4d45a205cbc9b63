"""Where sessions go, as a table of cases."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from outrider.gateway.placement import (
    AFFINITY_BLOCKS,
    UNEVEN_SESSIONS,
    Candidate,
    affinity_key,
    order,
)

KEY = affinity_key(range(64), "", 16)


def place(address: str, sessions: int = 0, **more) -> Candidate:
    return Candidate(address, sessions, **{"capacity": 8, "room": 16, **more})


def orders(candidates, times: int = 200, **wanted) -> Counter:
    """How often each order came out."""
    draw = random.Random(1)
    return Counter(tuple(order(candidates, draw=draw, **wanted)) for _ in range(times))


@pytest.mark.parametrize(
    ("candidates", "wanted", "expected"),
    [
        ([], {}, ()),
        ([place("a", alive=False)], {}, ()),
        ([place("a", draining=True)], {}, ()),
        ([place("a", 3), place("b", 2)], {}, ("b", "a")),
        ([place("a", 3, capacity=8), place("b", 2, capacity=2)], {}, ("a", "b")),
        ([place("a", 3, capacity=0), place("b", 2, capacity=0)], {}, ("b", "a")),
        ([place("a", 16), place("b", 15)], {}, ("b", "a")),
        ([place("a", 16), place("b", 15, draining=True)], {}, ("a",)),
        ([place("a", 99, room=0), place("b", 16)], {}, ("a", "b")),  # a does not tell how many fit
        ([place("a", 7), place("b", 0)], {"holder": "a"}, ("a", "b")),
        ([place("a", 16), place("b", 0)], {"holder": "a"}, ("a", "b")),  # its place there is its own
        ([place("a", alive=False), place("b")], {"holder": "a"}, ("b",)),
        ([place("a", draining=True), place("b")], {"holder": "a"}, ("b",)),
        ([place("a"), place("b", 1)], {"holder": "gone"}, ("a", "b")),
    ],
)
def test_the_order_is(candidates, wanted, expected):
    assert set(orders(candidates, **wanted)) == {expected}


def test_equals_take_turns():
    found = orders([place("a"), place("b")])
    assert min(found.values()) > 60
    assert len(found) == 2


def test_of_many_the_busiest_is_never_first_and_the_others_share():
    candidates = [place("abcd"[number], number) for number in range(4)]
    first = Counter(tried[0] for tried in orders(candidates, 2000).elements())
    assert set(first) == {"a", "b", "c"}
    assert first["a"] > first["b"] > first["c"] > 100


def test_every_verifier_that_is_there_is_tried_once():
    candidates = [place(name, index) for index, name in enumerate("abcdefg")]
    for tried in orders(candidates, key=KEY):
        assert sorted(tried) == list("abcdefg")


def test_equal_beginnings_meet_whatever_the_order_of_the_list():
    candidates = [place(name) for name in "abcde"]
    first = {tried[0] for tried in orders(candidates, key=KEY)}
    first |= {tried[0] for tried in orders(candidates[::-1], key=KEY)}
    assert len(first) == 1


def test_different_beginnings_are_spread():
    candidates = [place(name) for name in "abcd"]
    keys = [affinity_key([number] * 64, "", 16) for number in range(400)]
    first = Counter(order(candidates, draw=random.Random(1), key=key)[0] for key in keys)
    assert set(first) == set("abcd")
    assert min(first.values()) > 60


def test_one_that_leaves_moves_only_its_own():
    candidates = [place(name) for name in "abcd"]
    for number in range(100):
        key = affinity_key([number] * 64, "", 16)
        before = order(candidates, draw=random.Random(1), key=key)[0]
        after = order([c for c in candidates if c.address != "d"], draw=random.Random(1), key=key)[0]
        assert before in ("d", after)


@pytest.mark.parametrize("capacity", [8, 64, 0])
def test_kv_is_worth_some_sessions_and_not_more(capacity):
    likely = order([place("a"), place("b")], draw=random.Random(1), key=KEY)[0]
    other = "b" if likely == "a" else "a"
    most = max(UNEVEN_SESSIONS, capacity // 4)
    fits = [place(likely, most, capacity=capacity, room=0), place(other, 0, capacity=capacity, room=0)]
    assert set(orders(fits, key=KEY)) == {(likely, other)}
    too_many = [place(likely, most + 1, capacity=capacity, room=0), fits[1]]
    assert set(orders(too_many, key=KEY)) == {(other, likely)}


def test_a_key_is_of_whole_blocks_and_of_their_owner():
    prompt = list(range(100))
    key = affinity_key(prompt, "", 16)
    assert key == affinity_key(prompt[: 16 * AFFINITY_BLOCKS], "", 16)
    assert key == affinity_key(prompt[: 16 * AFFINITY_BLOCKS] + [7] * 50, "", 16)
    assert affinity_key(prompt[:20], "", 16) == affinity_key(prompt[:31], "", 16) != key
    assert affinity_key(prompt[:15], "", 16) == b""
    assert affinity_key(prompt, "somebody", 16) != key
    assert affinity_key([1, *prompt[1:]], "", 16) != key
