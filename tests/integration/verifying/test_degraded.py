"""What a verifier says of itself when something around it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.config.schema import OutriderConfig, RegistryConfig, VerifierConfig
from outrider.core.models import DrafterInfo, ModelInfo
from outrider.sessions.redis import RedisStore
from outrider.verifying.server import serve
from outrider.wire import convert
from outrider.wire.channels import open_channel
from outrider.wire.services import VerifierClient, verifier_client
from tests.integration.verifying.harness import TIMEOUT_S, Verifier, request, running
from tests.integration.verifying.scripted import ScriptedDrafter, scripted
from tests.servers import redis_server


async def reasons_of(client: VerifierClient) -> tuple[str, ...]:
    """What the verifier says now."""
    return convert.verifier_info_from_proto(await client.GetInfo(convert.verifier_info_request())).degraded


async def degraded(verifier: Verifier, expected: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """Ask until the answer is as expected."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            reasons = await reasons_of(verifier.client)
            if expected(reasons):
                return reasons
            await asyncio.sleep(0.01)


async def test_a_store_that_is_away_and_back(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.sessions.writer.PING_S", 0.05)
    with redis_server() as server:
        store = RedisStore(server.url, timeout_s=0.3)
        async with running(tiny, store=store) as verifier:
            assert await degraded(verifier, lambda _: True) == ()
            server.stop()
            # Nobody has to use it for that.
            (reason,) = await degraded(verifier, bool)
            assert reason.startswith(f"session store redis://127.0.0.1:{server.port}/0 is away: ")
            reply = await verifier.generate(request([5]))
            assert len(reply.tokens) == 24
            waiting = verifier.replica.writer.pending
            assert waiting > 0
            (reason,) = await degraded(verifier, bool)
            assert reason.endswith(f"; writes that wait for it: {waiting}")
            server.start()
            assert await degraded(verifier, lambda reasons: not reasons) == ()
        await store.close()


async def test_drafters_that_are_away_or_refused(tiny: Path) -> None:
    stranger = ScriptedDrafter(
        lambda held: [], info=DrafterInfo(ModelInfo("other", "f" * 64), "scripted", (), 64, 64, "one")
    )
    friend = ScriptedDrafter(lambda held: [])
    async with scripted(stranger) as wrong, scripted(friend) as right:
        async with scripted(ScriptedDrafter(lambda held: [])) as gone:
            pass
        drafters = {"right": right, "wrong": wrong, "gone": gone}
        async with running(tiny, drafters=drafters, wait=False) as verifier:
            reasons = await degraded(verifier, lambda reasons: len(reasons) == 2)
            assert reasons[0].startswith("drafter wrong is refused: ") and "tokenizer" in reasons[0]
            assert reasons[1].startswith("drafter gone is down: ")


async def test_a_registry_that_a_verifier_cannot_enter_itself_in(tiny: Path) -> None:
    with redis_server() as server:
        config = OutriderConfig(
            model=str(tiny),
            verifier=VerifierConfig(port=0, dtype="float32", pool_tokens=1024),
            registry=RegistryConfig(kind="redis", url=server.url, lease_s=0.5, heartbeat_s=0.1),
        )
        listening: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        task = asyncio.create_task(serve(config, ready=listening.set_result, stop=stop))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async with open_channel((await listening)["grpc"]) as channel:
                    client = verifier_client(channel)
                    assert await reasons_of(client) == ()
                    server.stop()
                    while not (reasons := await reasons_of(client)):
                        await asyncio.sleep(0.01)
                    assert all(f"127.0.0.1:{server.port}" in reason for reason in reasons)
                    assert any("registry" in reason for reason in reasons)
                    server.start()
                    while await reasons_of(client):
                        await asyncio.sleep(0.01)
        finally:
            stop.set()
            await task
