"""The gateway's process: waiting for verifiers, refusing the wrong one, losing one, stopping."""

import asyncio
import contextlib
import socket
from dataclasses import replace

import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.core.errors import ConfigError, ModelMismatchError, OverloadedError
from outrider.gateway.server import serve
from outrider.wire import channels, services
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.conftest import config_for, gateway_over
from tests.integration.gateway.scripted_verifier import running

COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 64}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def serve_now(config):
    await serve(config, ready=lambda _: None, stop=asyncio.Event())


async def test_another_tokenizer_is_refused(model_folder, make_verifier):
    verifier = make_verifier()
    verifier.info = type(verifier.info)(model=type(verifier.info.model)("big", "0123456789abcdef"))
    async with running(verifier) as address:
        with pytest.raises(
            ModelMismatchError, match=rf"{address} serves big with another tokenizer \(0123456789ab"
        ):
            await serve_now(config_for(model_folder, address))


async def test_another_protocol_version_is_refused(model_folder, make_verifier):
    verifier = make_verifier()
    verifier.info = type(verifier.info)(model=verifier.info.model, protocol_version=99)
    async with running(verifier) as address:
        with pytest.raises(ModelMismatchError, match="protocol version 99"):
            await serve_now(config_for(model_folder, address))


async def test_it_waits_for_its_verifier(model_folder, make_verifier):
    port = free_port()
    ready, stop = asyncio.Event(), asyncio.Event()
    config = config_for(model_folder, f"127.0.0.1:{port}")
    serving = asyncio.create_task(serve(config, ready=lambda _: ready.set(), stop=stop))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ready.wait(), 0.2)
    async with running(make_verifier(), port):
        await ready.wait()
        stop.set()
        await serving


async def test_it_can_be_stopped_while_it_waits(model_folder):
    stop = asyncio.Event()
    stop.set()
    config = config_for(model_folder, f"127.0.0.1:{free_port()}")
    await serve(config, ready=lambda _: pytest.fail("nothing is there"), stop=stop)


@pytest.mark.parametrize("which", ["http_port", "grpc_port"])
async def test_a_port_in_use_is_a_configuration_error(model_folder, make_verifier, which):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with running(make_verifier()) as address:
            with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
                await serve_now(config_for(model_folder, address, **{which: port}))


async def test_a_model_without_tokenizer_is_a_configuration_error(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        await serve_now(config_for(tmp_path, "127.0.0.1:1"))


async def test_health_tells_what_verifiers_say_of_themselves(model_folder, make_verifier):
    verifier, port = make_verifier(), free_port()
    async with running(verifier) as address:
        config = config_for(model_folder, address, f"127.0.0.1:{port}", probe_s=0.02)
        async with (
            gateway_over(config) as (addresses, _, _),
            httpx.AsyncClient(base_url=addresses["http"]) as client,
        ):

            async def until(body):
                async with asyncio.timeout(20):
                    while (answer := await client.get("/health")).json() != body:
                        await asyncio.sleep(0.01)
                assert answer.status_code == 200

            away = f"verifier 127.0.0.1:{port}: does not answer"
            await until({"status": "degraded", "reasons": [away]})
            async with running(make_verifier(), port):
                await until({"status": "ok", "reasons": []})
                verifier.info = replace(verifier.info, degraded=("session store away: 12 commits waiting",))
                said = f"verifier {address}: session store away: 12 commits waiting"
                await until({"status": "degraded", "reasons": [said]})
            await until({"status": "degraded", "reasons": [said, away]})


async def test_losing_the_verifier_and_finding_it_again(model_folder, make_verifier):
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        first = contextlib.AsyncExitStack()
        await first.enter_async_context(running(make_verifier(), port))
        config = config_for(model_folder, f"127.0.0.1:{port}")
        addresses, _, _ = await stack.enter_async_context(gateway_over(config))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=addresses["http"]))
        channel = channels.open_channel(addresses["grpc"])
        watching = aiter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
        while (await anext(watching)).status != health_pb2.HealthCheckResponse.SERVING:
            pass
        assert (await client.get("/health")).json() == {"status": "ok", "reasons": []}
        await first.aclose()
        refused = await client.post("/v1/completions", json=COMPLETION)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        health = await client.get("/health")
        assert health.status_code == 503
        assert health.json() == {
            "status": "unavailable",
            "reasons": [f"verifier 127.0.0.1:{port}: does not answer"],
        }
        assert (await anext(watching)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await client.get("/v1/models")).status_code == 503
        await stack.enter_async_context(running(make_verifier(), port))
        assert (await anext(watching)).status == health_pb2.HealthCheckResponse.SERVING
        assert (await client.get("/health")).status_code == 200
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200
        await channel.close()


async def test_sessions_go_where_the_fewest_run_and_where_they_fit(model_folder, make_verifier):
    one, two = make_verifier(), make_verifier()
    hold = asyncio.Event()

    async def pace(session, index):
        if index:
            await hold.wait()

    one.pace = two.pace = pace
    async with contextlib.AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(running(verifier)) for verifier in (one, two)]
        up, _, _ = await stack.enter_async_context(gateway_over(config_for(model_folder, *addresses)))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=up["http"]))
        while True:  # until both have been found
            streams = contextlib.AsyncExitStack()
            for _ in range(4):
                asked = COMPLETION | {"stream": True}
                await streams.enter_async_context(client.stream("POST", "/v1/completions", json=asked))
            split = one.running, two.running
            await streams.aclose()
            for session in [*one.sessions.values(), *two.sessions.values()]:
                await session.ended.wait()
            if min(split):
                break
        assert split == (2, 2)
        hold.set()
        one.refuse = OverloadedError("full")
        for _ in range(4):
            assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200
        two.refuse = OverloadedError("full too")
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 429


async def test_a_running_stream_may_finish_after_stop(stack, client, hold):
    async with client.stream("POST", "/v1/completions", json=COMPLETION | {"stream": True}) as response:
        stack.stop.set()
        hold.release.set()
        assert "[DONE]" in (await response.aread()).decode()
    await stack.serving


async def test_a_stream_that_does_not_finish_is_broken_off(model_folder, make_verifier):
    verifier = make_verifier()
    verifier.pace = lambda session, index: asyncio.Event().wait() if index else asyncio.sleep(0)
    async with (
        running(verifier) as address,
        gateway_over(config_for(model_folder, address), grace_s=0.1) as (addresses, serving, stop),
        httpx.AsyncClient(base_url=addresses["http"]) as client,
        client.stream("POST", "/v1/completions", json=COMPLETION | {"stream": True}),
    ):
        channel = channels.open_channel(addresses["grpc"])
        call = services.generation_client(channel).Generate(pb.GenerateRequest(prompt="hello"))
        await call.read()
        stop.set()
        await serving
        await channel.close()
    for session in verifier.sessions.values():
        await session.ended.wait()
    assert len(verifier.sessions) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_takes_too_long_ends(model_folder, make_verifier, stream):
    verifier = make_verifier()
    verifier.pace = lambda session, index: asyncio.Event().wait() if index else asyncio.sleep(0)
    async with (
        running(verifier) as address,
        gateway_over(config_for(model_folder, address, request_timeout_s=0.2)) as (addresses, _, _),
        httpx.AsyncClient(base_url=addresses["http"]) as client,
    ):
        response = await client.post("/v1/completions", json=COMPLETION | {"stream": stream})
        assert response.status_code == (200 if stream else 504)
        assert '"type":"timeout_error"' in response.text
        for session in verifier.sessions.values():
            await session.ended.wait()
