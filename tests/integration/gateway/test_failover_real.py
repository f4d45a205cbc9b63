"""Failover between real verifiers behind links that can be cut and frozen: nothing changes but the time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from outrider.config.schema import OutriderConfig
from outrider.sessions.memory import MemoryStore
from outrider.wire import channels, services
from outrider.wire.messages import GenerationDelta, GenerationStarted
from outrider.wire.v1 import common_pb2
from tests.integration.gateway.conftest import gateway_over
from tests.integration.gateway.failing import Seen, Several
from tests.integration.verifying.harness import Verifier, running
from tests.proxy import Proxy
from tests.tiny_models import make_tiny

TOKENS = 160
ASKED = {
    "prompt": "The quick brown fox",
    "stop": {"max_tokens": TOKENS, "ignore_eos": True},
    "sampling": {"temperature": 1.0, "seed": 5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny("llama", tmp_path_factory.mktemp("tiny") / "model")


@dataclass
class Replica:
    """A verifier, and the link to it."""

    verifier: Verifier
    proxy: Proxy
    life: AsyncExitStack

    @property
    def running(self) -> bool:
        return bool(self.verifier.used)


@asynccontextmanager
async def replicas(folder, *, shared: bool = True, **gateway):
    """A gateway over two verifiers; `shared`: they have one store."""
    stores = [MemoryStore()] * 2 if shared else [MemoryStore(), MemoryStore()]
    async with AsyncExitStack() as stack:
        found = []
        for store in stores:
            life = await stack.enter_async_context(AsyncExitStack())
            verifier = await life.enter_async_context(running(folder, store=store, threads=1, drain_s=0.0))
            proxy = stack.enter_context(Proxy(verifier.address))
            found.append(Replica(verifier, proxy, life))
        own = {"probe_s": 0.05, "verifier_timeout_s": 2, "http_port": 0, "grpc_port": 0, **gateway}
        config = OutriderConfig(
            model=str(folder),
            gateway={**own, "verifiers": tuple(replica.proxy.address for replica in found)},
        )
        up, _, stop = await stack.enter_async_context(gateway_over(config))
        channel = channels.open_channel(up["grpc"])
        stack.push_async_callback(channel.close)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=up["http"], timeout=60))
        setup = Several([], services.generation_client(channel), http, stop)
        await setup.healthy()
        yield setup, found


async def disturbed(setup, found, what, **asked) -> Seen:
    """One generation during which `what` happens to the verifier that runs it, after some tokens."""
    seen, done = Seen(), False
    async for event in setup.stream(**ASKED | asked):
        seen.take(event)
        if isinstance(event, GenerationDelta) and not done and len(seen.token_ids) >= 8:
            done = True
            (holder,) = [replica for replica in found if replica.running]
            await what(holder)
    assert await setup.metric("outrider_failovers_total", outcome="moved") >= 1
    return seen


async def cut(replica) -> None:
    replica.proxy.cut()


async def freeze(replica) -> None:
    replica.proxy.freeze()


async def refuse(replica) -> None:
    replica.proxy.refuse()


async def drain(replica) -> None:
    asyncio.get_running_loop().create_task(replica.life.aclose())


@pytest.mark.parametrize("shared", [True, False], ids=["one store", "no store in common"])
@pytest.mark.parametrize("what", [cut, freeze, refuse, drain])
async def test_the_client_sees_a_pause_and_nothing_else(folder, what, shared):
    async with replicas(folder, shared=shared) as (setup, found):
        undisturbed = await setup.generate(**ASKED)
        assert len(undisturbed.token_ids) == TOKENS
        seen = await disturbed(setup, found, what)
        assert seen.view == undisturbed.view


@pytest.mark.parametrize("what", [cut, freeze])
async def test_log_probabilities_are_those_of_the_undisturbed_generation(folder, what):
    told = {"logprobs": {"top": 3, "prompt_top": 1}}
    async with replicas(folder) as (setup, found):
        undisturbed = await setup.generate(**ASKED | told)
        seen = await disturbed(setup, found, what, **told)
        assert seen.view == undisturbed.view
        assert len(seen.logprobs) == TOKENS


@pytest.mark.parametrize("what", [cut, freeze])
async def test_stop_strings_are_found_across_a_failover(folder, what):
    async with replicas(folder) as (setup, found):
        undisturbed = await setup.generate(**ASKED)
        stop = undisturbed.text[len(undisturbed.text) * 3 // 4 :][:6]
        asked = {"stop": {**ASKED["stop"], "stop": [stop]}}
        seen = await disturbed(setup, found, what, **asked)
        assert seen.text == undisturbed.text[: undisturbed.text.index(stop)]


@pytest.mark.parametrize("rule", ["ACCEPTANCE_TOKEN", "ACCEPTANCE_BLOCK"])
@pytest.mark.parametrize("what", [cut, freeze])
async def test_rules_that_draw_afresh_go_on_from_what_is_stored(folder, what, rule):
    asked = {"speculation": {"acceptance": getattr(common_pb2, rule)}}
    async with replicas(folder) as (setup, found):
        seen = await disturbed(setup, found, what, **asked)
        stored = await found[0].verifier.store.load(seen.started.generation_id)
        assert stored.tokens == tuple(seen.token_ids)
        assert len(seen.token_ids) == TOKENS


async def test_many_sessions_at_once_lose_their_verifier(folder):
    async with replicas(folder) as (setup, found):

        async def one(number):
            asked = ASKED | {"sampling": {"temperature": 1.0, "seed": number}}
            return await setup.generate(**asked)

        undisturbed = [await one(number) for number in range(6)]
        begun = 0

        async def begin(number):
            nonlocal begun
            seen = Seen()
            asked = ASKED | {"sampling": {"temperature": 1.0, "seed": number}}
            async for event in setup.stream(**asked):
                seen.take(event)
                if isinstance(event, GenerationStarted):
                    begun += 1
                    if begun == 6:
                        found[0].proxy.freeze()
            return seen

        seen = await asyncio.gather(*(begin(number) for number in range(6)))
        assert [one.view for one in seen] == [one.view for one in undisturbed]
