"""Takeovers while Redis is slow, dead, frozen, empty or full: the gateway knows enough to go on."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from tests.faults import kinds
from tests.faults.conftest import Only
from tests.idle import wait_until_idle
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.stack import Stack, total, wait_until
from tests.traffic import Generated, connected, generate


async def test_commits_that_lag_are_computed_again(
    pair: Stack, only: Only, undisturbed: dict[str, Generated], store_link: Proxy
) -> None:
    """The verifier dies with commits that take half a second to reach the store."""
    store_link.delay_s = 0.25  # each way
    with only("verifier-1") as other:

        def strike() -> None:
            other.accept()
            pair["verifier-1"].restart()

        seen = await kinds.run([pair.grpc], kinds.DETERMINED, strike)
    store_link.heal()
    kinds.check(seen, undisturbed)
    await asyncio.to_thread(pair["verifier-1"].wait_serving)
    await asyncio.to_thread(wait_until_idle, pair)
    await kinds.check_stored(f"redis://{store_link.target}/0", seen)


@pytest.mark.parametrize("how", ["killed", "frozen", "cut off"])
async def test_a_takeover_while_the_store_is_away(
    pair: Stack,
    only: Only,
    undisturbed: dict[str, Generated],
    store_link: Proxy,
    shared: RedisServer,
    how: str,
) -> None:
    lose, find = {
        "killed": (shared.stop, shared.start),
        "frozen": (shared.freeze, shared.thaw),
        "cut off": (store_link.refuse, store_link.accept),
    }[how]
    with only("verifier-1") as other:

        def strike() -> None:
            lose()
            other.accept()
            pair.proxies["verifier-1"].freeze()

        try:
            seen = await kinds.run([pair.grpc], kinds.DETERMINED, strike)
        finally:
            find()
    kinds.check(seen, undisturbed)


async def test_a_store_that_comes_back_empty_is_no_end_of_a_session(
    pair: Stack, only: Only, undisturbed: dict[str, Generated], store_link: Proxy, shared: RedisServer
) -> None:
    """First everything that was stored is lost, then the verifier that runs the sessions."""
    with only("verifier-1") as other:

        def strike() -> None:
            shared.stop()
            shared.start()
            other.accept()
            pair.proxies["verifier-1"].freeze()

        seen = await kinds.run([pair.grpc], kinds.DETERMINED, strike)
    kinds.check(seen, undisturbed)
    pair.proxies["verifier-1"].thaw()
    await asyncio.to_thread(wait_until_idle, pair)
    await kinds.check_stored(f"redis://{store_link.target}/0", seen)


async def test_a_full_store_ends_no_stream(
    pair: Stack, undisturbed: dict[str, Generated], shared: RedisServer
) -> None:
    with Redis(port=shared.port) as admin:

        def strike() -> None:
            admin.config_set("maxmemory", 1)

        try:
            seen = await kinds.run([pair.grpc], kinds.DETERMINED, strike)
            kinds.check(seen, undisturbed)
            async with connected(pair.grpc) as stub:
                fresh = await generate(stub, kinds.request("greedy"))
            assert fresh.token_ids == undisturbed["greedy"].token_ids
        finally:
            admin.config_set("maxmemory", 0)
    for verifier in pair.all("verifier"):
        wait_until(
            lambda one=verifier: total(one.metrics(), "outrider_store_degraded") == 0,  # type: ignore[misc]
            "the store has caught up",
        )


async def test_a_slow_store_slows_no_stream_down(
    pair: Stack, undisturbed: dict[str, Generated], store_link: Proxy
) -> None:
    """The rules that store tokens first aside, a stream waits for no commit."""
    store_link.delay_s = 0.2
    store_link.bytes_per_s = 100_000
    async with connected(pair.grpc) as stub:
        for kind in ("seeded", "token"):
            got = await generate(stub, kinds.request(kind))
            kinds.check({kind: got}, undisturbed)
