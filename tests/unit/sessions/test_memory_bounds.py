"""The memory store stays within its bounds."""

from __future__ import annotations

from outrider.core.params import SamplingParams, StopParams
from outrider.core.sessions import Commit, SessionRecord
from outrider.sessions.memory import MemoryStore


def record(name: str, prompt: int = 0) -> SessionRecord:
    return SessionRecord(name, (7,) * prompt, SamplingParams(), StopParams(5))


async def test_the_longest_unwritten_session_goes_first() -> None:
    store = MemoryStore(max_sessions=2)
    await store.create(record("a"))
    await store.create(record("b"))
    assert await store.append([Commit("a", 1, 0, (5,))]) == [None]
    await store.create(record("c"))
    assert [type(item) for item in await store.append([Commit(n, 1, 0, ()) for n in "abc"])].count(
        type(None)
    ) == 2
    assert (await store.load("a")).tokens == (5,)
    assert len(store) == 2


async def test_tokens_are_bounded_and_given_back() -> None:
    store = MemoryStore(max_tokens=10)
    await store.create(record("a", prompt=4))
    await store.create(record("b", prompt=4))
    await store.append([Commit("b", 1, 0, (1, 2, 3))])
    assert len(store) == 1  # a went: 11 tokens were too many
    await store.delete("b")
    await store.create(record("c", prompt=5))
    await store.create(record("d", prompt=5))
    assert len(store) == 2
    await store.append([Commit("d", 1, 0, tuple(range(50)))])
    assert (await store.load("d")).tokens == tuple(range(50))  # a session never drops itself


async def test_expired_sessions_take_no_room() -> None:
    now = 0.0
    store = MemoryStore(ttl_s=10, clock=lambda: now)
    for index in range(100):
        await store.create(record(f"s-{index}", prompt=3))
    now = 10.0
    assert len(store) == 0
    await store.create(record("s-0"))
    assert len(store) == 1
