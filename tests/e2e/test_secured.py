"""A stack of processes under mutual TLS, with the cluster's credential and API keys: it serves whoever shows
all that is asked for, also when a verifier dies, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml
from grpc import aio

from outrider.client import AsyncClient, Connection, GenerationDelta, GenerationStarted, Options
from outrider.core.errors import UnauthenticatedError, UnavailableError
from outrider.gateway.auth.entries import hash_of, new_key
from outrider.wire import convert, services
from tests.certificates import SERVER_NAME, Authority
from tests.processes import Service, Trust
from tests.stack import Stack, tiny_config, total

TOKEN = "cluster-token-of-the-secured-stack"
ALICE, BOB = new_key(), new_key()
PROMPT = "The quick brown fox"
TOKENS = 200
OPTIONS: Options = {"max_tokens": TOKENS, "temperature": 1.0, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("mutual")
    internal, public = Authority(folder / "internal"), Authority(folder / "public")
    (folder / "token").write_text(TOKEN)
    keys = [{"name": "alice", "hash": hash_of(ALICE)}, {"name": "bob", "hash": hash_of(BOB)}]
    (folder / "keys").write_text(json.dumps(keys))
    config = tiny_config(folder)
    del config["drafters"]["other"], config["drafters"]["lookup"]
    asked = public.tls("gateway")
    config["security"] = {
        "internal_tls": internal.tls(),
        "public_tls": asked,
        "cluster_token_file": str(folder / "token"),
        "api_keys_file": str(folder / "keys"),
    }
    with Stack(folder, config, verifiers=2, public=Trust(**{**asked, **public.issue("client")})) as running:
        yield running


def client(stack: Stack, key: str, trust: Trust | None) -> AsyncClient:
    """Of the gateway, by gRPC."""
    credentials = trust.credentials if trust is not None else None
    server_name = trust.server_name if trust is not None else ""
    return AsyncClient(Connection(stack.grpc, credentials, key, retry=False, server_name=server_name))


def running(stack: Stack) -> Service:
    """The verifier that has a session."""
    return next(one for one in stack.all("verifier") if total(one.metrics(), "outrider_num_requests_running"))


def stranger(stack: Stack) -> Trust:
    """Somebody who knows the gateway's authority and has no certificate."""
    assert stack.all("gateway")[0].trust is not None
    return Trust(stack.all("gateway")[0].trust.ca, server_name=SERVER_NAME)


async def test_a_stream_survives_its_verifier_and_the_tenant_alone_may_end_it(stack: Stack) -> None:
    trust = stack.all("gateway")[0].trust
    async with client(stack, ALICE, trust) as alice, client(stack, BOB, trust) as bob:
        plain = await alice.generate(PROMPT, **OPTIONS, speculation=False)
        drafted = await alice.generate(PROMPT, **OPTIONS)
        assert len(plain.token_ids) == TOKENS and drafted.token_ids == plain.token_ids
        assert drafted.speculation.draft_tokens > 0, "the drafter was reached"
        got: list[int] = []
        async with alice.stream(PROMPT, **OPTIONS) as answer:
            async for event in answer:
                if isinstance(event, GenerationStarted):
                    assert not await bob.cancel(event.generation_id)
                elif isinstance(event, GenerationDelta):
                    if not got:
                        running(stack).kill()
                    got += event.token_ids
        assert got == list(plain.token_ids)


def test_http_serves_with_certificate_and_key_and_says_401_without_the_key(stack: Stack) -> None:
    gateway = stack.all("gateway")[0]
    assert gateway.trust is not None and stack.http.startswith("https://")
    body: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4}
    with httpx.Client(
        base_url=stack.http, verify=gateway.trust.context(), trust_env=False, timeout=60
    ) as http:
        assert http.post("/v1/completions", json=body).status_code == 401
        http.headers["authorization"] = f"Bearer {ALICE}"
        assert http.post("/v1/completions", json=body).status_code == 200
    assert total(gateway.metrics(), "outrider_requests_total") >= 2


async def test_nobody_else_reaches_the_gateway(stack: Stack) -> None:
    trust = stack.all("gateway")[0].trust
    for one, error in (
        (trust, UnauthenticatedError),
        (stranger(stack), UnavailableError),
        (None, UnavailableError),
    ):
        async with client(stack, BOB if one is not trust else "ork_wrong", one) as other:
            with pytest.raises(error):
                await other.generate(PROMPT, max_tokens=4)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{stack.http}/health", verify=stranger(stack).context(), trust_env=False)


@pytest.mark.parametrize("role", ["verifier", "twin"])
async def test_internal_services_ask_for_certificate_and_credential(stack: Stack, role: str) -> None:
    service = next(one for one in stack.all(role) if not one.expected_to_die)
    assert service.trust is not None
    options = [("grpc.enable_http_proxy", 0), *service.trust.options]
    bare = Trust(service.trust.ca, server_name=SERVER_NAME)
    for channel, code in (
        (
            aio.secure_channel(service.address, service.trust.credentials, options),
            grpc.StatusCode.UNAUTHENTICATED,
        ),
        (aio.secure_channel(service.address, bare.credentials, options), grpc.StatusCode.UNAVAILABLE),
        (aio.insecure_channel(service.address, options), grpc.StatusCode.UNAVAILABLE),
    ):
        async with channel:
            with pytest.raises(aio.AioRpcError) as caught:
                if role == "verifier":
                    await services.verifier_client(channel).GetInfo(
                        convert.verifier_info_request(), timeout=10
                    )
                else:
                    await services.drafter_client(channel).GetInfo(convert.drafter_info_request(), timeout=10)
            assert caught.value.code() is code


def test_no_log_holds_a_secret(stack: Stack) -> None:
    held = Path(yaml.safe_load((stack.folder / "gateway.yaml").read_text())["security"]["public_tls"]["key"])
    for secret in (TOKEN, ALICE, BOB, held.read_text().splitlines()[1]):
        assert [one.name for one in stack.services.values() if secret in one.log.read_text()] == []
