"""The session store may die or hang: streams go on, new ones are admitted, a metric says degraded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from tests.faults.conftest import Expect
from tests.servers import RedisServer
from tests.stack import Stack, total, wait_until
from tests.traffic import Generated, ask, connected, generate

LONG = {"max_tokens": 400, "temperature": 1.0}
SHORT = {"max_tokens": 24}


def degraded(stack: Stack) -> bool:
    return total(stack.metrics("verifier"), "outrider_store_degraded") == 1


def pending(stack: Stack) -> float:
    return total(stack.metrics("verifier"), "outrider_store_pending_commits")


def said_of_the_store(stack: Stack) -> list[str]:
    """What of the gateway's health concerns the store; requests are answered all the same."""
    answer = httpx.get(f"{stack.http}/health", trust_env=False, timeout=10)
    assert answer.status_code == 200
    reasons = [reason for reason in answer.json()["reasons"] if "session store" in reason]
    assert answer.json()["status"] == "degraded" or not reasons
    return reasons


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_store_lost_during_streams(stack: Stack, redis: RedisServer, expect: Expect, how: str) -> None:
    expected = await expect(**LONG)
    lose, find = (redis.stop, redis.start) if how == "killed" else (redis.freeze, redis.thaw)
    strike = once_after(10, lose)
    try:
        async with connected(stack.grpc) as stub:
            answers = await asyncio.gather(
                *(
                    generate(stub, ask(drafter=name, **LONG), on_delta=strike)
                    for name in ("twin", "lookup", None)
                )
            )
            assert [got.token_ids for got in answers] == [expected] * 3
            wait_until(lambda: degraded(stack), "the store is reported as degraded")
            wait_until(lambda: said_of_the_store(stack), "the gateway's health tells of the store")
            fresh = await generate(stub, ask(drafter="twin", **SHORT))
            assert fresh.token_ids == await expect(**SHORT)
    finally:
        find()
    wait_until(lambda: pending(stack) == 0 and not degraded(stack), "the store has caught up")
    wait_until(lambda: not said_of_the_store(stack), "the gateway's health is well again")
    async with connected(stack.grpc) as stub:
        assert (await generate(stub, ask(drafter="twin", **LONG))).token_ids == expected
    assert not degraded(stack)


def once_after(deltas: int, strike: Callable[[], None]) -> Callable[[Generated], None]:
    """Strikes when the first of several streams has come so far."""
    struck = False

    def on_delta(seen: Generated) -> None:
        nonlocal struck
        if seen.deltas == deltas and not struck:
            struck = True
            strike()

    return on_delta
