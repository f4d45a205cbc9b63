"""The order in which those that wait start: fair between tenants, in turn within one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from outrider.verifying.fair_queue import FairQueue

MOST = 50
"""Highest price in these tests."""


@dataclass(frozen=True)
class Waiter:
    tenant: str
    place: tuple[int, int]
    price: int


def new(tenant: str, order: int, price: int = 10) -> Waiter:
    return Waiter(tenant, (2, order), price)


def started(queue: FairQueue[Waiter]) -> Waiter:
    first = queue.first
    assert first is not None
    queue.start(first)
    return first


def test_one_tenant_is_served_in_turn() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    for order in (2, 1, 3):
        queue.add(new("", order))
    assert [started(queue).place[1] for _ in range(3)] == [1, 2, 3]
    assert queue.first is None and len(queue) == 0


def test_those_that_come_back_are_first_in_their_tenants_line() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    for waiter in (new("a", 1), Waiter("a", (1, 5), 10), Waiter("a", (0, 7), 0)):
        queue.add(waiter)
    assert [started(queue).place[0] for _ in range(3)] == [0, 1, 2]


def test_a_flood_of_one_tenant_lets_the_single_request_of_another_start_next() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    for order in range(1000):
        queue.add(new("flood", order))
    for _ in range(64):
        started(queue)
    queue.add(new("other", 1000))
    assert started(queue).tenant == "other"


def test_shares_are_of_work_and_not_of_sessions() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    for order in range(100):
        queue.add(new("long", order, price=40))
        queue.add(new("short", order, price=10))
    counts = Counter(started(queue).tenant for _ in range(50))
    assert counts == {"short": 40, "long": 10}


def test_work_that_was_paid_for_and_not_needed_is_paid_back() -> None:
    """Both need 10 tokens, but one tenant asks for 40 each time: it is served as often all the same."""
    queue: FairQueue[Waiter] = FairQueue()
    for order in range(100):
        queue.add(new("careless", order, price=40))
        queue.add(new("careful", order, price=10))
    counts: Counter[str] = Counter()
    for _ in range(50):
        one = started(queue)
        counts[one.tenant] += 1
        queue.pay_back(one.tenant, one.price - 10)
    assert counts == {"careless": 25, "careful": 25}


def test_who_was_away_brings_no_credit_along() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    queue.add(new("away", 0))
    started(queue)
    for order in range(200):
        queue.add(new("busy", 1 + order))
    for _ in range(100):
        started(queue)
    for order in range(100):
        queue.add(new("away", 300 + order))
    counts = Counter(started(queue).tenant for _ in range(40))
    assert counts == {"busy": 20, "away": 20}


def test_one_that_goes_without_having_started_pays_nothing() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    gone, stays = new("a", 1, price=MOST), new("b", 3)
    for waiter in (gone, new("a", 2), stays):
        queue.add(waiter)
    queue.remove(gone)
    assert [started(queue).tenant for _ in range(2)] == ["a", "b"]
    assert len(queue) == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abcd"), st.integers(1, MOST)),  # one more arrives
            st.none(),  # the next one starts
        ),
        max_size=200,
    )
)
def test_while_one_waits_no_other_tenant_gets_more_than_two_sessions_ahead(
    moves: list[tuple[str, int] | None],
) -> None:
    """Per other tenant: the work of its own tenant's sessions before it, and two sessions of the longest."""
    queue: FairQueue[Waiter] = FairQueue()
    let_in: dict[Waiter, Counter[str]] = {}  # by who waits: work that started meanwhile, by tenant
    arrived = 0
    for move in [*moves, *[None] * len(moves)]:
        if move is not None:
            arrived += 1
            waiter = new(move[0], arrived, move[1])
            queue.add(waiter)
            let_in[waiter] = Counter()
        elif queue.first is not None:
            one = started(queue)
            meanwhile = let_in.pop(one)
            for tenant, work in meanwhile.items():
                assert tenant == one.tenant or work <= meanwhile[one.tenant] + 2 * MOST
            for others in let_in.values():
                others[one.tenant] += one.price
    assert not let_in and len(queue) == 0
