"""The pool follows the registry, which is only a hint: whether a verifier is there it says itself."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from outrider.core.errors import ModelMismatchError
from outrider.core.params import SamplingParams
from outrider.discovery import Instance, Role
from outrider.gateway.verifiers import VerifierPool
from outrider.wire import channels
from outrider.wire.messages import SessionRequest, StopRequest, VerifierLoad
from tests.integration.gateway.scripted_verifier import running


class ChangingRegistry:
    """A registry whose list a test changes."""

    troubles: tuple[str, ...] = ()

    def __init__(self, *addresses: str) -> None:
        self.changed = asyncio.Condition()
        self.instances = tuple(Instance(Role.VERIFIER, address) for address in addresses)

    async def say(self, *instances: Instance | str) -> None:
        """The list is another one from now on."""
        self.instances = tuple(
            Instance(Role.VERIFIER, each) if isinstance(each, str) else each for each in instances
        )
        async with self.changed:
            self.changed.notify_all()

    async def list(self, role, name=None):
        return self.instances

    async def watch(self, role, name=None):
        while True:
            async with self.changed:
                yield self.instances
                await self.changed.wait()

    async def close(self) -> None:
        """Nothing to do."""


def accept(info, address):
    """Every verifier is good."""


@asynccontextmanager
async def pool_over(registry, check=accept, probe_s=0.02):
    pool = VerifierPool(registry, channels.open_channel, check, probe_s=probe_s, timeout_s=20.0)
    connecting = asyncio.create_task(pool.connect())
    try:
        yield pool, connecting
    finally:
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await pool.close()


async def places(pool, *addresses):
    """Wait until sessions may go to these, and only to these."""
    async with asyncio.timeout(20):
        while True:
            upcoming = pool.moved.upcoming
            if {link.address for link in pool.places()} == set(addresses):
                return
            await upcoming.wait()


def session_on(link, session_id="s"):
    return link.generate(SessionRequest(session_id, (1,), SamplingParams(), StopRequest(64)), 20, ())


async def test_verifiers_appear_and_vanish_without_a_restart(make_verifier):
    registry = ChangingRegistry()
    async with AsyncExitStack() as stack, pool_over(registry) as (pool, connecting):
        one = await stack.enter_async_context(running(make_verifier()))
        await registry.say(one)
        assert (await connecting).model.model_name == "tiny"
        await places(pool, one)
        other = await stack.enter_async_context(running(make_verifier()))
        await registry.say(one, other)
        await places(pool, one, other)
        await registry.say(other)
        await places(pool, other)


async def test_one_that_left_the_registry_keeps_its_streams_and_is_used_only_where_no_other_is(make_verifier):
    verifier = make_verifier()
    verifier.pace = lambda session, index: asyncio.Event().wait() if index else asyncio.sleep(0)
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(running(verifier))
        other = await stack.enter_async_context(running(make_verifier()))
        registry = ChangingRegistry(one)
        async with pool_over(registry) as (pool, connecting):
            await connecting
            (link,) = pool.places()
            stream = session_on(link)
            await stream.next()
            await stream.next()
            await registry.say(other)
            await places(pool, other)
            assert link.streams
            waiting = asyncio.create_task(stream.next())
            await registry.say()
            await places(pool, one, other)
            assert not waiting.done()
            waiting.cancel()
            stream.close()


async def test_one_that_left_the_registry_and_does_not_answer_is_forgotten(make_verifier):
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        one = await first.enter_async_context(running(make_verifier()))
        other = await stack.enter_async_context(running(make_verifier()))
        registry = ChangingRegistry(one, other)
        async with pool_over(registry) as (pool, connecting):
            await connecting
            await places(pool, one, other)
            await first.aclose()
            await places(pool, other)
            assert pool.degraded == (f"verifier {one}: does not answer",)
            await registry.say(other)
            async with asyncio.timeout(20):
                while pool.degraded:
                    await asyncio.sleep(0.01)


@pytest.mark.parametrize("by_itself", [True, False])
async def test_one_that_drains_takes_nothing_new(make_verifier, by_itself):
    verifier = make_verifier()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(running(verifier))
        other = await stack.enter_async_context(running(make_verifier()))
        registry = ChangingRegistry(one, other)
        async with pool_over(registry) as (pool, connecting):
            await connecting
            await places(pool, one, other)
            if by_itself:
                verifier.info = replace(verifier.info, draining=True)
            else:
                leaving = Instance(Role.VERIFIER, one, "", verifier.info.instance_id, draining=True)
                await registry.say(leaving, other)
            await places(pool, other)
            assert pool.degraded == ()
            verifier.info = replace(verifier.info, draining=False, instance_id="another")
            await places(pool, one, other)


async def test_one_that_a_call_finds_away_is_asked_at_once_and_everybody_is_told(make_verifier):
    async with AsyncExitStack() as stack:
        life = await stack.enter_async_context(AsyncExitStack())
        one = await life.enter_async_context(running(make_verifier()))
        async with pool_over(ChangingRegistry(one), probe_s=600) as (pool, connecting):
            await connecting
            available = pool.availability()
            assert await anext(available)
            (link,) = pool.places()
            await life.aclose()
            link.lost()
            async with asyncio.timeout(20):
                assert not await anext(available)
            assert pool.info is None


async def test_one_that_a_call_finds_away_but_is_there_is_used_again_at_once(make_verifier):
    async with running(make_verifier()) as one, pool_over(ChangingRegistry(one), probe_s=600) as (pool, up):
        await up
        (link,) = pool.places()
        link.lost()
        assert not pool.places()
        assert pool.info is not None
        assert await pool.recheck(20)
        assert pool.places() == [link]


async def test_sessions_of_other_gateways_count(make_verifier):
    busy, idle = make_verifier(), make_verifier()
    busy.info = replace(busy.info, load=VerifierLoad(5, 0, 8, 8, 0.5))
    idle.info = replace(idle.info, load=VerifierLoad(1, 0, 8, 8, 0.5))
    async with (
        running(busy) as one,
        running(idle) as other,
        pool_over(ChangingRegistry(one, other)) as (pool, connecting),
    ):
        await connecting
        await places(pool, one, other)
        assert [link.address for link in pool.places()] == [other, one]
        link = pool.places()[0]
        streams = [session_on(link, f"s{number}") for number in range(5)]
        assert [found.address for found in pool.places()] == [one, other]
        for stream in streams:
            stream.close()


async def test_a_gateway_starts_unless_all_verifiers_must_be_refused(make_verifier):
    wrong, right = make_verifier(), make_verifier()
    wrong.info = replace(wrong.info, instance_id="wrong")

    def check(info, address):
        if info.instance_id == "wrong":
            raise ModelMismatchError("another tokenizer")

    async with running(wrong) as one:
        registry = ChangingRegistry(one)
        async with pool_over(registry, check) as (pool, connecting):
            with pytest.raises(ModelMismatchError, match="another tokenizer"):
                await connecting
        async with (
            running(right) as other,
            pool_over(ChangingRegistry(one, other), check) as (pool, connecting),
        ):
            assert (await connecting).instance_id == "one"
            await places(pool, other)
            async with asyncio.timeout(20):
                while pool.degraded != (f"verifier {one}: another tokenizer",):
                    await asyncio.sleep(0.01)
