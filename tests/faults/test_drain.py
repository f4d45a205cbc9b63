"""A verifier that is told to stop hands over what it has: what runs and what waits. It stops cleanly."""

from __future__ import annotations

import asyncio

from tests.faults import kinds
from tests.faults.conftest import Only
from tests.proxy import Proxy
from tests.stack import Stack, total, wait_until
from tests.traffic import Generated, ask, connected, generate

SESSIONS = 16
"""That run at once at a verifier of `pair`."""


async def test_a_drained_verifier_hands_its_streams_over(
    pair: Stack, only: Only, undisturbed: dict[str, Generated], store_link: Proxy
) -> None:
    drained = pair["verifier-1"]
    with only("verifier-1") as other:

        def strike() -> None:
            other.accept()
            drained.terminate()

        seen = await kinds.run([pair.grpc], kinds.KINDS, strike)
    try:
        problem = await asyncio.to_thread(drained.finish)
        assert not problem
    finally:
        drained.start()
    assert all(got.resumes == 0 for got in seen.values()), "a client had to help"
    kinds.check(seen, undisturbed)
    await kinds.check_stored(f"redis://{store_link.target}/0", seen)


async def test_what_waits_at_a_drained_verifier_is_handed_over_too(pair: Stack, only: Only) -> None:
    drained = pair["verifier-2"]
    asked = [ask(drafter=None, max_tokens=200, temperature=1.0, seed=seed) for seed in range(SESSIONS + 8)]
    with only("verifier-2") as other:
        async with connected(pair.grpc) as stub:
            running = [asyncio.create_task(generate(stub, request)) for request in asked]

            def full() -> bool:
                return total(drained.metrics(), "outrider_num_requests_waiting") > 0

            await asyncio.to_thread(wait_until, full, "sessions wait")
            other.accept()
            drained.terminate()
            got = await asyncio.gather(*running)
            try:
                problem = await asyncio.to_thread(drained.finish)
                assert not problem
            finally:
                drained.start()
            again = await asyncio.gather(*(generate(stub, request) for request in asked))
    assert [one.token_ids for one in got] == [one.token_ids for one in again]
