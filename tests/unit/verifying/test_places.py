"""Who may come in at a verifier that is full, and who has to give way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import OverloadedError
from outrider.verifying.places import Places


@dataclass
class Door:
    """Places, with the engine thread's side played: what it is told is listed."""

    max_sessions: int = 1
    max_queue: int = 4
    timeout_s: float | None = None
    now: float = 0.0
    put_out: list[tuple[str, OverloadedError]] = field(default_factory=list)
    arriving: set[str] = field(default_factory=set)  # the engine thread does not know of them yet
    refused: list[str] = field(default_factory=list)  # reasons
    asked: list[str] = field(default_factory=list)  # about which of them

    def __post_init__(self) -> None:
        self.places = Places(
            max_sessions=self.max_sessions,
            max_queue=self.max_queue,
            admitted=self.admitted,
            evict=lambda session_id, error: self.put_out.append((session_id, error)),
            refused=self.refused.append,
            timeout_s=self.timeout_s,
            clock=lambda: self.now,
        )

    def admitted(self, session_id: str) -> bool:
        self.asked.append(session_id)
        return session_id not in self.arriving

    def take(self, *session_ids: str, returns: bool = False) -> None:
        """Arrivals; the first letter is the tenant."""
        for session_id in session_ids:
            self.places.take(session_id, session_id[0], returns=returns)

    def refuses(self, session_id: str) -> OverloadedError:
        with pytest.raises(OverloadedError) as caught:
            self.take(session_id)
        return caught.value

    @property
    def victims(self) -> list[str]:
        return [session_id for session_id, _ in self.put_out]


def full(**settings: int) -> Door:
    """`a` runs one session and has four that wait."""
    door = Door(**settings)
    door.take("a0")
    door.places.started("a0")
    door.take("a1", "a2", "a3", "a4")
    return door


def test_the_heaviest_tenants_own_arrival_is_refused() -> None:
    door = full()
    door.refuses("a5")
    assert not door.put_out and door.refused == ["full"]


def test_a_lighter_tenant_takes_the_place_of_the_heaviest_ones_youngest() -> None:
    door = full()
    door.take("b1")
    assert door.victims == ["a4"]
    assert door.places.waiting == 4
    door.take("b2")
    assert door.victims == ["a4", "a3"] and door.refused == ["put_out"] * 2


def test_tenants_with_equal_shares_do_not_put_each_other_out() -> None:
    door = full()
    door.take("b1", "b2")
    door.refuses("a5")
    door.refuses("b3")  # it has as many waiting as the other one
    assert len(door.put_out) == 2


def test_a_queue_of_one_goes_to_whom_nothing_runs() -> None:
    door = Door(max_queue=1)
    door.take("a0")
    door.places.started("a0")
    door.take("a1", "b1")
    assert door.victims == ["a1"]
    door.refuses("a2")


def test_a_session_that_returns_always_finds_a_place_where_a_new_one_waits() -> None:
    door = full()
    door.take("a9", returns=True)
    assert door.victims == ["a4"]


def test_whoever_had_a_turn_or_returns_is_never_put_out() -> None:
    door = Door(max_sessions=1, max_queue=2)
    door.take("a0", "a1")
    door.places.started("a0")
    door.places.started("a1")  # one of them is preempted, say
    door.take("a2", returns=True)
    door.refuses("b1")
    assert not door.put_out


def test_one_that_the_engine_thread_does_not_know_of_yet_is_not_put_out() -> None:
    door = full()
    door.arriving |= {"a3", "a4"}
    door.take("b1")
    assert door.victims == ["a2"]


def test_one_that_has_its_turn_as_it_is_put_out_stays_and_counts() -> None:
    door = full()
    door.take("b1")
    door.places.started("a4")
    assert door.places.running == 2 and door.places.waiting == 4
    door.refuses("a5")
    door.places.give_back("a4")
    assert door.places.running == 1


def test_a_place_that_was_given_back_is_free() -> None:
    door = full()
    door.places.give_back("a0")
    door.places.give_back("a0")
    door.take("a5")
    door.refuses("a6")


def test_the_hint_is_the_queues_length_at_the_pace_of_those_that_ended() -> None:
    door = Door(max_sessions=2, max_queue=2)
    door.take("a0", "a1")
    for number in range(2, 12):  # one ends every half second
        door.places.started(f"a{number - 2}")
        door.now += 0.5
        door.places.give_back(f"a{number - 2}")
        door.take(f"a{number}")
    door.take("a98", "a99")
    assert door.places.waiting == 4
    assert door.refuses("a100").retry_after_s == pytest.approx(4 * 0.5)
    door.now += 3600  # nobody has ended for an hour
    assert door.refuses("a100").retry_after_s == 60.0


def test_the_hint_is_a_second_while_nothing_is_known_and_never_below_a_tenth() -> None:
    door = full()
    assert door.refuses("a5").retry_after_s == 1.0
    door.now += 0.001
    door.places.give_back("a0")
    door.take("a5")
    assert door.refuses("a6").retry_after_s == 0.1


async def test_one_that_waits_too_long_is_put_out_and_told_how_long_it_was() -> None:
    door = Door(max_sessions=1, timeout_s=0.01)
    door.take("a0", "a1", "a2")
    door.take("a3", returns=True)
    door.places.started("a0")
    door.places.give_back("a2")
    door.arriving.add("a1")
    async with asyncio.timeout(10):
        while not door.asked:
            await asyncio.sleep(0.005)
        assert not door.put_out, "not before the engine thread can be told"
        door.arriving.clear()
        while not door.put_out:
            await asyncio.sleep(0.005)
    assert door.victims == ["a1"]
    assert "0.01 s" in str(door.put_out[0][1]) and door.refused == ["timeout"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["new", "returns", "start", "end"]), st.sampled_from("abc")), max_size=120
    )
)
def test_there_are_never_more_than_places_and_a_refusal_means_a_fair_share(
    moves: list[tuple[str, str]],
) -> None:
    door = Door(max_sessions=2, max_queue=5)
    waiting: dict[str, bool] = {}  # by session: whether it returns; oldest first
    running: list[str] = []
    for number, (move, tenant) in enumerate(moves):
        session_id = f"{tenant}{number}"
        if move == "start" and waiting and len(running) < 2:
            session_id = next(iter(waiting))
            del waiting[session_id]
            running.append(session_id)
            door.places.started(session_id)
        elif move == "end" and running:
            door.places.give_back(running.pop(0))
        elif move in ("new", "returns"):
            before = len(door.put_out)
            try:
                door.take(session_id, returns=move == "returns")
            except OverloadedError:
                own = sum(one[0] == tenant for one in waiting)
                evictable = {one[0] for one, returns in waiting.items() if not returns}
                assert len(waiting) + len(running) == 7
                if move == "returns":
                    assert not evictable
                assert all(sum(one[0] == other for one in waiting) <= own + 1 for other in evictable)
                continue
            for victim in door.victims[before:]:
                assert waiting.pop(victim) is False
                door.places.give_back(victim)
            waiting[session_id] = move == "returns"
        assert (door.places.waiting, door.places.running) == (len(waiting), len(running))
        assert len(waiting) + len(running) <= 7
