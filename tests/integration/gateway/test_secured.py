"""API keys, limits and TLS through a gateway's two APIs, over a verifier that plays a script."""

import json
import ssl
from contextlib import asynccontextmanager

import grpc
import httpx
import openai
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.client import AsyncClient, Connection, tls_credentials
from outrider.core.errors import (
    ConfigError,
    RateLimitedError,
    UnauthenticatedError,
    UnavailableError,
)
from outrider.gateway.auth.entries import hash_of, new_key
from outrider.wire import channels, services
from outrider.wire.v1 import generation_pb2 as pb
from tests.certificates import SERVER_NAME, Authority, copy, replace
from tests.integration.gateway.conftest import Hold, Stack, config_for, gateway_over
from tests.integration.gateway.scripted_verifier import running

COMPLETION = {"model": "tiny", "prompt": "hello"}
ALICE, ALICES_OTHER, BOB, STRANGER = (new_key() for _ in range(4))


def write_keys(path, **limits):
    names = (("alice", ALICE), ("alice", ALICES_OTHER), ("bob", BOB))
    entries = [
        {"name": name, "hash": hash_of(key), "limits": limits if name == "alice" else {}}
        for name, key in names
    ]
    replace(path, "".join(f"- {json.dumps(entry)}\n" for entry in entries).encode())
    return str(path)


def last_tenant(up):
    return list(up.verifier.sessions.values())[-1].request.tenant


class Keyed(Stack):
    """A gateway that asks for keys."""

    def over_http(self, key=""):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(base_url=self.http, headers=headers, timeout=30)

    def over_grpc(self, key=""):
        return AsyncClient(Connection(self.grpc, api_key=key, retry=False))


@pytest.fixture
def gateway(model_folder, make_verifier, tmp_path):
    """Starts one whose keys have these limits (alice's)."""

    @asynccontextmanager
    async def start(security=None, **limits):
        verifier = make_verifier()
        async with running(verifier) as address:
            config = config_for(model_folder, address)
            told = security or {"api_keys_file": write_keys(tmp_path / "keys", **limits)}
            config = config.model_validate({**config.model_dump(), "security": told})
            async with gateway_over(config) as (addresses, serving, stop):
                up = Keyed(addresses["http"], addresses["grpc"], verifier, stop, serving)
                yield up

    return start


async def refusal(call):
    """The error that a call of the Python client ends with."""
    with pytest.raises(Exception) as caught:
        await call
    return caught.value


@pytest.mark.parametrize(
    "key", ["", STRANGER, ALICE[:-1], "Bearer"], ids=["none", "unknown", "near", "empty"]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/tiny"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
    ],
)
async def test_http_without_a_key_is_401_with_openais_body(gateway, key, method, path):
    async with gateway() as up, up.over_http(key) as client:
        answer = await client.request(method, path, json=COMPLETION if method == "POST" else None)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer" and answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert not key or key not in error["message"]
    assert not up.verifier.sessions


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_a_key_in_either_header_is_its_tenants(gateway, header):
    async with gateway() as up, up.over_http() as client:
        for key, tenant in ((ALICE, "alice"), (ALICES_OTHER, "alice"), (BOB, "bob")):
            value = f"Bearer {key}" if header == "authorization" else key
            answer = await client.post("/v1/completions", json=COMPLETION, headers={header: value})
            assert answer.status_code == 200, answer.text
            assert last_tenant(up) == tenant


@pytest.mark.parametrize("path", ["/health", "/metrics", "/version"])
async def test_probes_and_scrapers_need_no_key_and_learn_no_secret(gateway, path):
    async with gateway() as up, up.over_http() as client:
        async with up.over_http(ALICE) as alice:
            assert (await alice.post("/v1/completions", json=COMPLETION)).status_code == 200
        answer = await client.get(path)
    assert answer.status_code == 200
    assert not any(text in answer.text for text in (ALICE, hash_of(ALICE), "alice"))


async def test_the_openai_sdk_tells_a_wrong_key_from_a_limit(gateway):
    async with gateway(requests_per_minute=1) as up:
        for key, kind in (
            (STRANGER, openai.AuthenticationError),
            (ALICE, None),
            (ALICE, openai.RateLimitError),
        ):
            client = openai.AsyncOpenAI(base_url=f"{up.http}/v1", api_key=key, max_retries=0)
            call = client.completions.create(model="tiny", prompt="hello")
            if kind is None:
                assert (await call).choices
            else:
                assert isinstance(await refusal(call), kind)
            await client.close()


async def test_grpc_without_a_key_is_unauthenticated_but_for_health(gateway):
    async with gateway() as up, channels.open_channel(up.grpc) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for key in ("", STRANGER):
            async with up.over_grpc(key) as client:
                for call in (client.generate("hello"), client.models(), client.cancel("g")):
                    assert isinstance(await refusal(call), UnauthenticatedError)
        stub = services.generation_client(channel)
        with pytest.raises(aio.AioRpcError) as caught:
            [event async for event in stub.Resume(pb.ResumeRequest(generation_id="g"), timeout=10)]
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        reflection = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(aio.AioRpcError):
            [event async for event in reflection(iter([b""]), timeout=10)]
        assert not up.verifier.sessions


async def test_a_grpc_call_with_a_key_is_its_tenants(gateway):
    async with gateway() as up, up.over_grpc(BOB) as client:
        assert (await client.generate("hello", model="tiny")).token_ids
        assert last_tenant(up) == "bob"


async def test_only_the_same_tenant_can_cancel_and_others_learn_nothing(gateway):
    async with gateway() as up:
        up.verifier.pace = hold = Hold()
        async with (
            up.over_grpc(ALICE) as alice,
            up.over_grpc(ALICES_OTHER) as alice_too,
            up.over_grpc(BOB) as bob,
        ):
            async with alice.stream("hello", model="tiny") as stream:
                started = await anext(stream)
                assert not await bob.cancel(started.generation_id)
                assert not await bob.cancel("no-such-generation")
                assert await alice_too.cancel(started.generation_id)
            hold.release.set()


async def test_another_tenants_generation_cannot_be_resumed(gateway):
    async with gateway() as up:
        async with up.over_grpc(ALICE) as alice, alice.stream("hello", model="tiny") as stream:
            started = await anext(stream)
            async for _ in stream:
                pass
        channel = channels.open_channel(up.grpc)
        stub = services.generation_client(channel)
        request = pb.ResumeRequest(generation_id=started.generation_id)
        with pytest.raises(aio.AioRpcError) as caught:
            metadata = (("authorization", f"Bearer {BOB}"),)
            [event async for event in stub.Resume(request, timeout=10, metadata=metadata)]
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await channel.close()


async def test_requests_over_the_limit_are_429_with_the_time_to_wait(gateway):
    async with (
        gateway(requests_per_minute=2) as up,
        up.over_http(ALICE) as client,
        up.over_http(BOB) as other,
        up.over_grpc(ALICES_OTHER) as grpc_client,
    ):
        for _ in range(2):
            assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200
        answer = await client.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        error = await refusal(grpc_client.generate("hello"))
        assert isinstance(error, RateLimitedError) and 0 < error.retry_after_s <= 30
        assert (await client.get("/v1/models")).status_code == 200
        assert not await grpc_client.cancel("g")
        assert (await other.post("/v1/completions", json=COMPLETION)).status_code == 200


async def test_generations_at_once_over_the_limit_are_429_until_one_ends(gateway):
    async with gateway(max_concurrent=1) as up:
        up.verifier.pace = hold = Hold()
        async with up.over_grpc(ALICE) as client, up.over_http(ALICES_OTHER) as http:
            async with client.stream("hello", model="tiny") as stream:
                await anext(stream)
                answer = await http.post("/v1/completions", json=COMPLETION)
                assert answer.status_code == 429 and "1 generations at once" in answer.text
                hold.release.set()
                async for _ in stream:
                    pass
            assert (await http.post("/v1/completions", json=COMPLETION)).status_code == 200


async def test_tokens_over_the_limit_are_429_and_what_is_not_used_is_given_back(gateway, tmp_path):
    async with gateway(tokens_per_minute=150) as up, up.over_http(ALICE) as client:
        for _ in range(3):  # each sets nearly half aside and uses a fraction
            answer = await client.post("/v1/completions", json={**COMPLETION, "max_tokens": 60})
            assert answer.status_code == 200, answer.text
        write_keys(tmp_path / "keys", tokens_per_minute=5)
        answer = await client.post("/v1/completions", json={**COMPLETION, "max_tokens": 60})
        assert answer.status_code == 429 and "tokens_per_minute" in answer.text


async def test_a_key_that_is_revoked_is_refused_with_the_next_request(gateway, tmp_path):
    async with gateway() as up, up.over_http(ALICE) as client:
        assert (await client.get("/v1/models")).status_code == 200
        replace(tmp_path / "keys", b"[]")
        assert (await client.get("/v1/models")).status_code == 401


async def test_a_wrong_file_of_keys_stops_the_start(gateway, tmp_path):
    (tmp_path / "wrong").write_text("- {name: alice}")
    with pytest.raises(ConfigError, match="entry 1 hash"):
        async with gateway({"api_keys_file": str(tmp_path / "wrong")}):
            pass


async def test_both_apis_over_tls_with_certificates_that_change(gateway, tmp_path):
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    tls = ours.issue("gateway")
    async with gateway({"public_tls": tls}) as up:
        assert up.http.startswith("https://")
        for authority in (ours, theirs):
            if authority is theirs:
                copy(theirs.issue("gateway"), tls)
            credentials, context = (
                tls_credentials(authority.ca),
                ssl.create_default_context(cafile=str(authority.ca)),
            )
            async with (
                httpx.AsyncClient(base_url=up.http, verify=context, timeout=30, trust_env=False) as http,
                AsyncClient(Connection(up.grpc, credentials, server_name=SERVER_NAME, retry=False)) as client,
                AsyncClient(Connection(up.grpc, retry=False)) as plain,
            ):
                assert (await http.post("/v1/completions", json=COMPLETION)).status_code == 200
                assert (await client.generate("hello", model="tiny")).token_ids
                assert isinstance(await refusal(plain.models(timeout_s=5)), UnavailableError)


async def test_a_verifier_that_refuses_the_gateways_credential_is_not_the_clients_fault(
    model_folder, make_verifier
):
    verifier = make_verifier()
    verifier.refuse = UnauthenticatedError("the cluster's credential is missing or wrong")
    async with (
        running(verifier) as address,
        gateway_over(config_for(model_folder, address, failover_s=0.1)) as (addresses, _, _),
        httpx.AsyncClient(base_url=addresses["http"], timeout=60) as client,
    ):
        answer = await client.post("/v1/completions", json=COMPLETION)
    assert answer.status_code == 503, answer.text
