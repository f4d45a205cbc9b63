"""Which replica a session is put on."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from outrider.verifying.link_state import LinkState
from outrider.verifying.patience import Patience
from outrider.verifying.placing import place
from outrider.wire.messages import DrafterLoad


def replica(
    link: str,
    held: int = 0,
    *,
    others: int = 0,
    most: int = 8,
    queued: int = 0,
    usual_s: float | None = None,
    rested: bool = False,
) -> LinkState:
    """A replica that holds so many sessions."""
    patience = Patience(limit_s=1.0, max_misses=1, rest_s=1.0)
    if rested:
        patience.miss(0.0)
    if usual_s is not None:
        patience.observe(usual_s)
    state = LinkState(link, "d", patience, up=True, max_sessions=most)
    state.sessions = {f"s{number}" for number in range(held)}
    state.told(DrafterLoad(held + others, queued, 0.0))
    return state


CASES = {
    "the one that there is": ([replica("x", 7)], {"x"}),
    "who holds fewer": ([replica("x", 3), replica("y", 2)], {"y"}),
    "other verifiers' sessions count": ([replica("x", 1, others=3), replica("y", 3)], {"y"}),
    "a share, not a number": ([replica("x", 4, most=4), replica("y", 6, most=32)], {"y"}),
    "of equals, who has the shorter queue": ([replica("x", 2, queued=2), replica("y", 2, queued=1)], {"y"}),
    "then the faster one": ([replica("x", 1, usual_s=0.2), replica("y", 1, usual_s=0.1)], {"y"}),
    "of equals, either": ([replica("x"), replica("y")], {"x", "y"}),
    "never the most loaded of three": ([replica("x", 1), replica("y", 2), replica("z", 3)], {"x", "y"}),
    "nobody joins whoever is on trial": ([replica("x", 1, rested=True), replica("y", 7)], {"y"}),
    "somebody has to try": ([replica("x", 0, rested=True), replica("y", 7)], {"x"}),
    "on trial is better than none": ([replica("x", 1, rested=True)], {"x"}),
}


@pytest.mark.parametrize(("candidates", "expected"), CASES.values(), ids=CASES)
def test_the_less_loaded_of_two(candidates: list[LinkState], expected: set[str]) -> None:
    rng = random.Random(0)
    chosen = {link.link for _ in range(200) if (link := place(candidates, rng)) is not None}
    assert chosen == expected


def test_nobody() -> None:
    assert place([], random.Random(0)) is None


def test_sessions_spread_evenly() -> None:
    rng = random.Random(1)
    replicas = [replica(str(number), most=100) for number in range(8)]
    for number in range(200):
        chosen = place(replicas, rng)
        assert chosen is not None
        chosen.sessions.add(str(number))
    counts = Counter(len(one.sessions) for one in replicas)
    assert max(counts) - min(counts) <= 4


def test_what_a_replica_tells_counts_its_sessions_once() -> None:
    one = replica("x", 3, others=4)
    assert one.fullness == 7 / 8
    one.sessions.pop()
    assert one.fullness == 6 / 8
    one.told(DrafterLoad(1, 0, 0.0))  # it has not heard of all yet
    assert one.fullness == 2 / 8
