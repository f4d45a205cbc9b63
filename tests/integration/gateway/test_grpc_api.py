"""outrider.v1.Generation over real sockets."""

import asyncio

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from outrider.core import errors
from outrider.wire import channels, services
from outrider.wire.errors import from_rpc_error
from outrider.wire.services import GENERATION
from outrider.wire.v1 import common_pb2
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.conftest import config_for, gateway_over, ids_of, say
from tests.integration.gateway.scripted_verifier import running
from tests.integration.gateway.test_gateway_observed import samples, value

TEXT = "the quick brown fox jumps over the lazy dog, the end."


def request(**fields):
    return pb.GenerateRequest(**({"prompt": "hello"} | fields))


async def run(generation, asked, **options):
    return [event async for event in generation.Generate(asked, **options)]


async def refusal(generation, asked):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await run(generation, asked)
    return caught.value.code(), from_rpc_error(caught.value)


async def test_events_in_order(generation, stack):
    stack.verifier.script = lambda _: say(TEXT, 4)
    events = await run(generation, request(sampling={"seed": 9, "temperature": 0}))
    assert [event.WhichOneof("event") for event in events] == [
        "started",
        *["delta"] * (len(events) - 2),
        "finished",
    ]
    started, deltas, finished = (
        events[0].started,
        [event.delta for event in events[1:-1]],
        events[-1].finished,
    )
    assert (started.model, started.seed) == ("tiny", 9)
    assert started.generation_id in stack.verifier.sessions
    assert "".join(delta.text for delta in deltas) == TEXT
    assert [token_id for delta in deltas for token_id in delta.token_ids] == ids_of(TEXT)
    position = 0
    for delta in deltas:
        assert (delta.first_token, delta.accepted) == (position, len(delta.token_ids) - 1)
        position += len(delta.token_ids)
    assert finished.reason == common_pb2.FINISH_REASON_LENGTH
    assert finished.usage.completion_tokens == position
    assert finished.speculation.accepted_tokens == position - len(deltas)


@pytest.mark.parametrize("size", [1, 3, 50])
async def test_stop_string(generation, stack, size):
    stack.verifier.script = lambda _: say(TEXT, size)
    events = await run(generation, request(stop={"stop": ["lazy"]}))
    finished = events[-1].finished
    ids = [token_id for event in events for token_id in event.delta.token_ids]
    assert "".join(event.delta.text for event in events) == "the quick brown fox jumps over the "
    assert finished.reason == common_pb2.FINISH_REASON_STOP
    assert finished.usage.completion_tokens == len(ids)
    assert finished.speculation.accepted_tokens == sum(event.delta.accepted for event in events)


async def test_inputs(generation, stack):
    await run(generation, request(token_ids={"ids": [5, 6]}))
    await run(generation, request(chat={"messages": [{"role": "user", "content": "hi"}]}))
    ids, chat = (session.request.prompt for session in stack.verifier.sessions.values())
    assert ids == (5, 6)
    assert list(chat) == ids_of("<user>hi\n<assistant>")


async def test_an_unset_length_is_the_rest_of_the_context(generation, stack):
    await run(generation, request(token_ids={"ids": [5, 6]}))
    assert next(iter(stack.verifier.sessions.values())).request.stop.max_tokens == 254


@pytest.mark.parametrize(
    ("asked", "code", "field"),
    [
        (request(sampling={"temperature": -1}), grpc.StatusCode.INVALID_ARGUMENT, "sampling.temperature"),
        (request(sampling={"temperature": 200}), grpc.StatusCode.INVALID_ARGUMENT, "sampling.temperature"),
        (request(token_ids={"ids": [1] * 300}), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (request(token_ids={"ids": [10**6]}), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (request(prompt=""), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (request(stop={"stop": [""]}), grpc.StatusCode.INVALID_ARGUMENT, "stop.stop"),
        (request(stop={"max_tokens": 1000}), grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"),
        (request(cache_salt="x" * 257), grpc.StatusCode.INVALID_ARGUMENT, "cache_salt"),
        (pb.GenerateRequest(), grpc.StatusCode.INVALID_ARGUMENT, "input"),
    ],
)
async def test_refusals_name_their_field(generation, stack, asked, code, field):
    status, error = await refusal(generation, asked)
    assert (status, error.field) == (code, field)
    assert not stack.verifier.sessions


async def test_unknown_model(generation):
    status, error = await refusal(generation, request(model="other"))
    assert status is grpc.StatusCode.NOT_FOUND
    assert isinstance(error, errors.ModelNotFoundError)


async def test_the_verifiers_errors_pass_through(generation, stack):
    stack.verifier.refuse = errors.OverloadedError("full", retry_after_s=1.5)
    status, error = await refusal(generation, request())
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.retry_after_s == 1.5


async def test_cancel(generation, stack, hold):
    call = generation.Generate(request())
    reading = aiter(call)
    started = (await anext(reading)).started
    assert (await generation.Cancel(pb.CancelRequest(generation_id=started.generation_id))).found
    events = [event async for event in reading]
    assert events[-1].finished.reason == common_pb2.FINISH_REASON_CANCELLED
    delivered = sum(len(event.delta.token_ids) for event in events)
    assert events[-1].finished.usage.completion_tokens == delivered
    assert not (await generation.Cancel(pb.CancelRequest(generation_id=started.generation_id))).found


async def test_a_client_that_goes_away_frees_the_session(generation, stack, hold):
    call = generation.Generate(request())
    await call.read()
    call.cancel()
    (session,) = stack.verifier.sessions.values()
    await session.ended.wait()
    assert session.broken_off


async def test_the_clients_deadline_holds(generation, stack, hold):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await run(generation, request(), timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    (session,) = stack.verifier.sessions.values()
    await session.ended.wait()


async def test_a_client_that_does_not_read_is_given_up(model_folder, make_verifier, monkeypatch):
    monkeypatch.setattr("outrider.gateway.generations.UNREAD_S", 0.05)
    narrow = [("grpc.http2.lookahead_bytes", 64), ("grpc.http2.bdp_probe", 0)]  # a few events
    async with (
        running(make_verifier(TEXT * 3, size=1)) as address,
        gateway_over(config_for(model_folder, address, request_timeout_s=1.0)) as (addresses, _, _),
        grpc.aio.insecure_channel(addresses["grpc"], options=narrow) as channel,
        httpx.AsyncClient(base_url=addresses["http"], timeout=30) as client,
    ):
        call = services.generation_client(channel).Generate(request())
        await call.initial_metadata()
        async with asyncio.timeout(30):
            while value(await samples(client), "outrider_open_streams"):
                pass
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [event async for event in call]
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "has not read" in caught.value.details()


async def test_models(generation):
    (model,) = (await generation.ListModels(pb.ListModelsRequest())).models
    assert (model.model_name, model.context_length) == ("tiny", 256)


async def test_health_and_reflection(stack):
    channel = channels.open_channel(stack.grpc)
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", GENERATION):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = [answer async for answer in stub.ServerReflectionInfo(iter([ask]))]
    assert GENERATION in [service.name for service in answers[0].list_services_response.service]
    await channel.close()
