"""A drafter that dies or freezes in mid-stream costs time, never a token, and is used again."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.conftest import Expect, speculates_again
from tests.stack import Stack
from tests.traffic import Generated, ask, connected, generate

LONG = {"max_tokens": 400}
SHORT = {"max_tokens": 24}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["other", "suffix"])
async def test_drafter_killed_in_mid_stream(
    stack: Stack, expect: Expect, temperature: float, name: str
) -> None:
    request = {**LONG, "temperature": temperature}
    short = {**SHORT, "temperature": temperature}
    expected = await expect(**request)
    drafter = stack[name]
    async with connected(stack.grpc) as stub:
        # Suffix decoding has something to propose from the first token on, if it served the same before.
        assert (await generate(stub, ask(drafter=name, **request))).token_ids == expected

    def strike(seen: Generated) -> None:
        if seen.deltas == 10:
            drafter.kill()

    try:
        async with connected(stack.grpc) as stub:
            got = await generate(stub, ask(drafter=name, **request), on_delta=strike)
            assert drafter.process is not None
            assert drafter.process.poll() is not None, "the stream was over before the drafter was killed"
            assert got.token_ids == expected
            assert got.stats.drafts > 0
            during = await generate(stub, ask(drafter=name, **short))
            assert during.token_ids == await expect(**short)
    finally:
        drafter.start()
        drafter.wait_serving()
    await speculates_again(stack, name, await expect(**short), **short)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_one_of_several_killed_in_mid_stream(stack: Stack, expect: Expect, temperature: float) -> None:
    request = {**LONG, "temperature": temperature}
    drafter = stack["twin"]

    def strike(seen: Generated) -> None:
        if seen.deltas == 10:
            drafter.kill()

    try:
        async with connected(stack.grpc) as stub:
            got = await generate(stub, ask(drafter="twin+other+lookup", **request), on_delta=strike)
            assert drafter.process is not None and drafter.process.poll() is not None
            assert got.token_ids == await expect(**request)
            assert got.stats.drafter == "fused" and got.stats.drafts > 0
            assert {one.name for one in got.stats.drafters} == {"twin", "other", "lookup"}
    finally:
        drafter.start()
        drafter.wait_serving()
    short = {**SHORT, "temperature": temperature}
    await speculates_again(stack, "twin", await expect(**short), **short)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_drafter_frozen_in_mid_stream(stack: Stack, expect: Expect, temperature: float) -> None:
    request = {**LONG, "temperature": temperature}
    short = {**SHORT, "temperature": temperature}
    expected = await expect(**request)
    drafter = stack["twin"]

    def strike(seen: Generated) -> None:
        if seen.deltas == 10:
            drafter.freeze()

    try:
        async with connected(stack.grpc) as stub:
            # Both end while the drafter is still frozen: nobody waits without a bound.
            got = await generate(stub, ask(drafter="twin", **request), on_delta=strike)
            assert got.token_ids == expected
            assert got.stats.missed > 0
            other = await generate(stub, ask(drafter="lookup", **short))
            assert other.token_ids == await expect(**short)
    finally:
        drafter.thaw()
    await speculates_again(stack, "twin", await expect(**short), **short)


async def test_only_the_sessions_of_a_lost_drafter_notice(stack: Stack, expect: Expect) -> None:
    """Sessions of another drafter in the same batch go on speculating."""
    request = {**LONG, "temperature": 1.0}
    expected = await expect(**request)
    drafter = stack["other"]
    async with connected(stack.grpc) as stub:

        def strike(seen: Generated) -> None:
            if seen.deltas == 10:
                drafter.kill()

        try:
            lost, kept = await asyncio.gather(
                generate(stub, ask(drafter="other", **request), on_delta=strike),
                generate(stub, ask(drafter="twin", **request)),
            )
        finally:
            drafter.start()
            drafter.wait_serving()
    assert lost.token_ids == kept.token_ids == expected
    assert kept.stats.drafts > lost.stats.drafts
    assert kept.stats.accepted_tokens == kept.stats.draft_tokens
