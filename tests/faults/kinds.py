"""One stream of every kind, all at once, against what an undisturbed run says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outrider.config.schema import StoreConfig
from outrider.core.sessions import SessionRecord
from outrider.sessions import open_store
from outrider.wire.v1 import common_pb2, generation_pb2
from tests.sse import Streamed
from tests.traffic import Generated, ask, persist

TOKENS = 200
DETERMINED = ("greedy", "seeded", "edited", "logprobs", "grammar")
"""What the seed decides."""
DRAWN = ("token", "block")
"""What it does not decide: these rules draw anew after a takeover, so their tokens are stored first."""
KINDS = DETERMINED + DRAWN


def request(kind: str, *, drafter: str | None = "twin") -> generation_pb2.GenerateRequest:
    """A request of this kind, long enough to be struck in the middle."""
    wanted = ask(max_tokens=TOKENS, temperature=0.0 if kind == "greedy" else 1.0, seed=11, drafter=drafter)
    if kind == "edited":
        wanted.sampling.top_p = 0.9
        wanted.sampling.edits.frequency_penalty = 0.5
        wanted.sampling.edits.min_tokens = 20
    elif kind == "logprobs":
        wanted.logprobs.top = 2
    elif kind == "grammar":
        wanted.stop.ignore_eos = False
        wanted.sampling.edits.grammar.kind = common_pb2.GRAMMAR_KIND_REGEX
        wanted.sampling.edits.grammar.text = "([a-z]{1,5}[0-9]{1,3},){400}"
    elif kind in DRAWN:
        wanted.speculation.acceptance = common_pb2.Acceptance.Value(f"ACCEPTANCE_{kind.upper()}")
    return wanted


Watch = Callable[[Generated], None]
"""Called after each delta of a stream."""


class Barrier:
    """Strikes once, when each of some streams has come so far."""

    def __init__(self, streams: int, deltas: int, strike: Callable[[], None]) -> None:
        self.struck = False
        self._waiting, self._deltas, self._strike = streams, deltas, strike

    def watch(self) -> Watch:
        """To be called after each delta of one stream."""
        arrived = False

        def on_delta(seen: Generated) -> None:
            nonlocal arrived
            if arrived or seen.deltas < self._deltas:
                return
            arrived = True
            self._waiting -= 1
            if not self._waiting:
                self.struck = True
                self._strike()

        return on_delta


def counted(watch: Watch) -> Callable[[Streamed], None]:
    """The same watch for a stream of server-sent events: each event is a delta."""

    def on_event(seen: Streamed) -> None:
        watch(Generated(deltas=seen.events))

    return on_event


async def run(
    addresses: Sequence[str], kinds: Sequence[str], strike: Callable[[], None], *, deltas: int = 6
) -> dict[str, Generated]:
    """One stream of each kind, struck in the middle; each is resumed by its client if it must be."""
    barrier = Barrier(len(kinds), deltas, strike)
    seen = await run_watched(addresses, {kind: barrier.watch() for kind in kinds})
    assert barrier.struck, "the streams were over before the strike"
    return seen


async def run_watched(addresses: Sequence[str], watches: Mapping[str, Watch]) -> dict[str, Generated]:
    """One stream of each kind, each with its watch."""
    answers = await asyncio.gather(
        *(persist(addresses, request(kind), on_delta=watch) for kind, watch in watches.items())
    )
    return dict(zip(watches, answers, strict=True))


def check(seen: Mapping[str, Generated], undisturbed: Mapping[str, Generated]) -> None:
    """What the seed decides is the same; the rest has its length. (Places are checked as tokens come.)"""
    for kind, got in seen.items():
        wanted = undisturbed[kind]
        assert got.finished.reason == wanted.finished.reason, kind
        if kind in DETERMINED:
            assert got.token_ids == wanted.token_ids, kind
            assert got.text == wanted.text, kind
            assert got.logprobs == wanted.logprobs, kind
        else:
            assert len(got.token_ids) == TOKENS, kind


async def check_stored(url: str, seen: Mapping[str, Generated]) -> None:
    """What the clients have is what the store has."""
    for kind, got in seen.items():
        record = await stored(url, got.generation_id)
        assert list(record.tokens) == got.token_ids, kind
        assert record.finish_reason is not None, kind


async def stored(url: str, session_id: str) -> SessionRecord:
    """A session as the store has it.

    Raises:
        SessionNotFoundError: it has not.
    """
    store = open_store(StoreConfig(kind="redis", url=url))
    try:
        return await store.load(session_id)
    finally:
        await store.close()


def pauses(seen: Mapping[str, Any]) -> list[float]:
    """The longest time without tokens of each stream."""
    return [
        max((later - sooner for sooner, later in zip(got.times, got.times[1:], strict=False)), default=0.0)
        for got in seen.values()
    ]
