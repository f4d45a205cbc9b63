"""Real services that trust nobody without a certificate and the cluster's credential."""

import ssl

import httpx
import pytest

from outrider.client import AsyncClient, Connection, tls_credentials
from outrider.core.errors import UnavailableError
from tests.certificates import SERVER_NAME, Authority, copy, replace
from tests.integration.gateway.real_stack import real_addresses, real_stack
from tests.tiny_models import make_tiny

ASKED = {
    "model": "tiny",
    "prompt": "The quick brown fox",
    "max_tokens": 24,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
    "speculation": {"stats": True},
}
TOKEN = "cluster-token-of-the-test"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny("llama", tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def internal(tmp_path):
    return Authority(tmp_path / "internal")


@pytest.fixture
def public(tmp_path):
    return Authority(tmp_path / "public")


def secured(tmp_path, internal, public=None, token=TOKEN, name="service"):
    path = tmp_path / f"token-{name}"
    replace(path, token.encode())
    settings = {"internal_tls": internal.tls(name), "cluster_token_file": str(path)}
    if public is not None:
        settings["public_tls"] = public.issue("gateway")
    return settings


async def complete(client):
    answer = await client.post("/v1/completions", json=ASKED)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["choices"][0]["token_ids"], body["speculation_stats"]["draft_tokens"]


async def test_all_links_over_mutual_tls_give_what_plaintext_gives(folder, tmp_path, internal, public):
    drafters = {"twin": {"method": "draft_model"}}
    async with real_stack(folder, drafters=drafters) as client:
        expected, _ = await complete(client)
    security = secured(tmp_path, internal, public)
    context = ssl.create_default_context(cafile=str(public.ca))
    async with (
        real_addresses(folder, drafters=drafters, security=security) as addresses,
        httpx.AsyncClient(base_url=addresses["http"], verify=context, timeout=60) as http,
        AsyncClient(
            Connection(addresses["grpc"], tls_credentials(public.ca), server_name=SERVER_NAME)
        ) as grpc,
    ):
        for _ in range(20):  # the link to the drafter may need a moment
            got, drafted = await complete(http)
            assert got == expected
            if drafted:
                break
        assert drafted, "drafts come over the protected link"
        result = await grpc.generate(
            ASKED["prompt"], model="tiny", max_tokens=24, temperature=0.0, ignore_eos=True
        )
        assert result.token_ids == expected


async def test_certificates_and_token_change_under_a_running_stack(folder, tmp_path, internal):
    security = secured(tmp_path, internal)
    new = Authority(tmp_path / "new")
    async with (
        real_addresses(folder, security=security) as addresses,
        httpx.AsyncClient(base_url=addresses["http"], timeout=60) as client,
    ):
        expected, _ = await complete(client)
        copy(new.tls(), security["internal_tls"])
        replace(tmp_path / "token-service", b"another-token-of-the-cluster")
        assert (await complete(client))[0] == expected


@pytest.mark.parametrize("wrong", ["token", "authority"])
async def test_a_drafter_that_does_not_let_the_verifier_in_costs_drafts_only(
    folder, tmp_path, internal, wrong
):
    security = secured(tmp_path, internal)
    theirs = (
        secured(tmp_path, internal, token="another-token-of-the-cluster", name="theirs")
        if wrong == "token"
        else secured(tmp_path, Authority(tmp_path / "other"), name="theirs")
    )
    drafters = {"twin": {"method": "draft_model"}}
    async with (
        real_addresses(folder, drafters=drafters, security=security, of_drafters=theirs) as addresses,
        httpx.AsyncClient(base_url=addresses["http"], timeout=60) as client,
    ):
        token_ids, drafted = await complete(client)
        assert len(token_ids) == 24 and drafted == 0


async def test_a_stack_with_public_tls_refuses_plaintext(folder, tmp_path, internal, public):
    security = secured(tmp_path, internal, public)
    async with real_addresses(folder, security=security) as addresses:
        async with AsyncClient(Connection(addresses["grpc"], retry=False)) as plain:
            with pytest.raises(UnavailableError):
                await plain.models(timeout_s=10)
        async with httpx.AsyncClient(timeout=10) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(addresses["http"].replace("https", "http") + "/health")
