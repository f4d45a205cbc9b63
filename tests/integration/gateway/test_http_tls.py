"""TLS of the HTTP API over real sockets: who is refused, and certificates that change."""

import ssl
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from outrider.config.schema import SecurityConfig
from outrider.core.errors import ConfigError
from outrider.wire.protection import public_protection
from tests.certificates import SERVER_NAME, Authority, copy
from tests.integration.gateway.bare_http import serving


def protection(**tls):
    return public_protection(SecurityConfig.model_validate({"public_tls": tls}))


def trusting(authority, certificate=None):
    """A client's context."""
    context = ssl.create_default_context(cadata=authority.ca.read_text())
    if certificate is not None:
        context.load_cert_chain(certificate["certificate"], certificate["key"])
    return context


async def ask(bare, context):
    """Whether a request on a new connection is answered."""
    try:
        async with httpx.AsyncClient(base_url=bare.address, verify=context, trust_env=False) as client:
            return (await client.post("/echo", content=b"{}")).json() == {"length": 2}
    except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
        return False


@pytest.fixture
def ours(tmp_path):
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path):
    return Authority(tmp_path / "theirs")


async def test_https_is_served_and_plain_http_is_not(ours):
    async with serving(protection=protection(**ours.issue())) as bare:
        assert bare.address.startswith("https://127.0.0.1:")
        assert await ask(bare, trusting(ours))
        async with httpx.AsyncClient(trust_env=False) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(bare.address.replace("https", "http"))


async def test_a_client_that_trusts_another_authority_is_right_to_refuse(ours, theirs):
    async with serving(protection=protection(**ours.issue())) as bare:
        assert not await ask(bare, trusting(theirs))


async def test_an_expired_certificate_is_refused(ours):
    past = datetime.now(UTC) - timedelta(days=1)
    async with serving(protection=protection(**ours.issue(not_after=past))) as bare:
        assert not await ask(bare, trusting(ours))


async def test_with_an_authority_clients_need_a_certificate_of_it(ours, theirs):
    async with serving(protection=protection(**ours.tls())) as bare:
        assert await ask(bare, trusting(ours, ours.issue("client")))
        assert not await ask(bare, trusting(ours))
        assert not await ask(bare, trusting(ours, theirs.issue("client")))


@pytest.mark.parametrize("name", ["127.0.0.1", SERVER_NAME])
async def test_new_certificates_serve_new_connections_while_a_stream_goes_on(ours, theirs, name):
    """With a name and with an address: the latter sends no server name in its handshake."""
    settings = ours.tls()
    old, new = trusting(ours, ours.issue("old")), trusting(theirs, theirs.issue("new"))
    async with (
        serving(protection=protection(**settings)) as bare,
        httpx.AsyncClient(verify=old, trust_env=False) as client,
    ):
        extensions = {"sni_hostname": name} if name != "127.0.0.1" else {}
        request = client.build_request("GET", f"{bare.address}/slow", extensions=extensions)
        answer = await client.send(request, stream=True)
        parts = answer.aiter_bytes()
        assert await anext(parts) == b"first,"
        copy(theirs.tls(), settings)
        assert await ask(bare, new)
        assert not await ask(bare, old)
        bare.release.set()
        assert b"".join([part async for part in parts]) == b"last"


async def test_a_client_of_an_authority_that_was_taken_away_is_refused(ours, theirs):
    """The certificate stays: only who is trusted has changed, also for sessions that could be resumed."""
    settings = ours.tls()
    context = trusting(ours, ours.issue("client"))
    async with serving(protection=protection(**settings)) as bare:
        assert await ask(bare, context)
        copy({"ca": str(theirs.ca)}, settings)
        assert not await ask(bare, context)


async def test_a_wrong_new_file_changes_nothing(ours, theirs):
    settings = ours.issue()
    async with serving(protection=protection(**settings)) as bare:
        copy({"key": theirs.issue()["key"]}, settings)
        assert await ask(bare, trusting(ours))


async def test_old_protocol_versions_are_refused(ours):
    context = trusting(ours)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(protection=protection(**ours.issue())) as bare:
        assert not await ask(bare, context)


async def test_an_authority_without_a_certificate_does_not_start(ours):
    with pytest.raises(ConfigError, match=r"security\.public_tls\.ca is set, but a server needs"):
        async with serving(protection=protection(ca=str(ours.ca))):
            pass
