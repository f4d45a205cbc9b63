"""Replicas of a drafter come and go: streams go on, and what is there is used."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults import kinds
from tests.faults.conftest import LATER
from tests.stack import Service, Stack, total, wait_until
from tests.traffic import Generated, ask, connected, generate


def proposals(drafter: Service) -> float:
    """That it has sent since it was started."""
    return total(drafter.metrics(), "outrider_drafter_proposals_total")


async def until_used(pair: Stack, drafter: Service, undisturbed: dict[str, Generated]) -> None:
    """Ask until this replica proposes; every answer on the way must be right."""
    before = proposals(drafter)
    async with connected(pair.grpc) as stub:
        for _ in range(100):
            answers = await asyncio.gather(
                *(generate(stub, ask(drafter="twin", max_tokens=48, seed=11)) for _ in range(6))
            )
            for got in answers:
                assert got.token_ids == undisturbed["greedy"].token_ids[:48]
            if proposals(drafter) > before:
                return
    raise AssertionError(f"{drafter.name} is not used")


@pytest.mark.parametrize("how", ["killed", "frozen", "drained"])
async def test_a_replica_goes_and_the_streams_go_on(
    pair: Stack, undisturbed: dict[str, Generated], how: str
) -> None:
    replica = pair["twin-1"]
    strike = {"killed": replica.kill, "frozen": replica.freeze, "drained": replica.terminate}[how]
    try:
        seen = await kinds.run([pair.grpc], kinds.DETERMINED, strike)
        kinds.check(seen, undisturbed)
        for got in seen.values():
            assert got.stats.draft_tokens > 0
        if how == "drained":
            assert not await asyncio.to_thread(replica.finish)
        await until_used(pair, pair["twin-2"], undisturbed)
    finally:
        if how == "frozen":
            replica.thaw()
        else:
            replica.start()
        await asyncio.to_thread(replica.wait_serving)
    await until_used(pair, replica, undisturbed)


async def test_a_replica_that_appears_is_used(pair: Stack, undisturbed: dict[str, Generated]) -> None:
    replica = pair[LATER]
    replica.start()
    try:
        await asyncio.to_thread(replica.wait_serving)
        await until_used(pair, replica, undisturbed)
    finally:
        await asyncio.to_thread(replica.drain)
        replica.process = None
    async with connected(pair.grpc) as stub:
        got = await generate(stub, kinds.request("greedy"))
    assert got.token_ids == undisturbed["greedy"].token_ids
    assert got.stats.draft_tokens > 0


def test_replicas_that_are_gone_are_forgotten(pair: Stack) -> None:
    """After all that has happened to them, every link that a verifier shows is one that is there."""

    def links(verifier: Service) -> float:
        return sum(
            value
            for key, value in verifier.metrics().items()
            if key.startswith("outrider_drafter_link_state") and "state=ready" in key and "twin" in key
        )

    for verifier in pair.all("verifier"):
        wait_until(lambda one=verifier: links(one) >= 1, "a replica is ready")  # type: ignore[misc]
