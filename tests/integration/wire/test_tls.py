"""TLS on internal links, over real sockets: who is refused, and certificates that change."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from grpc import aio

from outrider.config.schema import SecurityConfig
from outrider.core.errors import ConfigError
from outrider.wire import channels, convert, services
from outrider.wire.protection import PLAIN, Protection, exposed, internal_protection, public_protection
from outrider.wire.v1 import verifier_pb2 as v
from tests.certificates import Authority, copy
from tests.integration.wire.protected import serving


def protection(**tls: str) -> Protection:
    return internal_protection(SecurityConfig.model_validate({"internal_tls": tls}))


async def outcome(address: str, client: Protection) -> grpc.StatusCode:
    """How a call on a new connection ends."""
    async with channels.open_channel(address, protection=client) as channel:
        try:
            await services.verifier_client(channel).GetInfo(convert.verifier_info_request(), timeout=10)
        except aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs")


async def test_both_sides_with_a_certificate_of_the_authority_talk(ours: Authority) -> None:
    async with serving(protection(**ours.tls())) as served:
        assert await outcome(served.address, protection(**ours.tls("client"))) is grpc.StatusCode.OK


async def test_a_caller_without_a_certificate_is_refused(ours: Authority) -> None:
    async with serving(protection(**ours.tls())) as served:
        bare = protection(ca=str(ours.ca))
        assert await outcome(served.address, bare) is grpc.StatusCode.UNAVAILABLE
        assert await outcome(served.address, PLAIN) is grpc.StatusCode.UNAVAILABLE
        assert not served.verifier.calls


async def test_a_caller_of_another_authority_is_refused(ours: Authority, theirs: Authority) -> None:
    async with serving(protection(**ours.tls())) as served:
        foreign = protection(**theirs.issue(), ca=str(ours.ca))
        assert await outcome(served.address, foreign) is grpc.StatusCode.UNAVAILABLE
        assert not served.verifier.calls


async def test_a_server_of_another_authority_is_not_talked_to(ours: Authority, theirs: Authority) -> None:
    async with serving(protection(**theirs.issue(), ca=str(ours.ca))) as served:
        assert await outcome(served.address, protection(**ours.tls())) is grpc.StatusCode.UNAVAILABLE
        assert not served.verifier.calls


async def test_a_server_of_another_name_is_not_talked_to(ours: Authority) -> None:
    async with serving(protection(**ours.tls())) as served:
        other = {**ours.tls("client"), "server_name": "elsewhere.test"}
        assert await outcome(served.address, protection(**other)) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("who", ["client", "server"])
async def test_an_expired_certificate_is_refused(ours: Authority, who: str) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    good, expired = ours.tls("good"), ours.tls("expired", not_after=past)
    server, client = (good, expired) if who == "client" else (expired, good)
    async with serving(protection(**server)) as served:
        assert await outcome(served.address, protection(**client)) is grpc.StatusCode.UNAVAILABLE
        assert not served.verifier.calls


async def test_certificates_of_a_new_authority_are_used_while_a_stream_runs_on(
    ours: Authority, theirs: Authority
) -> None:
    server, client = ours.tls("server"), ours.tls("client")
    old = protection(**ours.tls("old"))
    async with (
        serving(protection(**server)) as served,
        channels.open_channel(served.address, protection=protection(**client)) as channel,
    ):
        stub = services.verifier_client(channel)
        stream = stub.Generate(v.VerifierGenerateRequest(), timeout=60)
        assert await stream.read() is not aio.EOF
        for name, settings in (("server", server), ("client", client)):
            copy(theirs.tls(name), settings)
        assert theirs.ca.read_bytes() == ours.ca.read_bytes()  # it is the file that both name
        # The same channel, on a new connection: with the old one's certificates it would be refused.
        await stub.GetInfo(convert.verifier_info_request(), timeout=10)
        assert served.verifier.calls == ["Generate", "GetInfo"]
        served.verifier.release.set()
        assert await stream.read() is not aio.EOF
        assert await stream.read() is aio.EOF
        assert await outcome(served.address, protection(**theirs.tls("new"))) is grpc.StatusCode.OK
        assert await outcome(served.address, old) is grpc.StatusCode.UNAVAILABLE


async def test_reload_under_load_breaks_no_call(ours: Authority) -> None:
    server, client = ours.tls("server"), ours.tls("client")
    async with (
        serving(protection(**server)) as served,
        channels.open_channel(served.address, protection=protection(**client)) as channel,
    ):
        stub = services.verifier_client(channel)
        served.verifier.release.set()

        async def one() -> int:
            return len([answer async for answer in stub.Generate(v.VerifierGenerateRequest(), timeout=60)])

        tasks: list[asyncio.Task[int]] = []
        for round_ in range(10):
            tasks += [asyncio.create_task(one()) for _ in range(10)]
            await asyncio.sleep(0)
            copy(ours.tls(f"round-{round_}"), client if round_ % 2 else server)
        assert await asyncio.gather(*tasks) == [2] * 100


async def test_a_wrong_new_certificate_changes_nothing(
    ours: Authority, theirs: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = ours.tls("server")
    async with serving(protection(**server)) as served:
        Path(server["key"]).write_bytes(Path(theirs.issue()["key"]).read_bytes())
        with caplog.at_level(logging.ERROR, "outrider.config.files"):
            assert await outcome(served.address, protection(**ours.tls("client"))) is grpc.StatusCode.OK
    assert any("security.internal_tls" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_connection_that_says_nothing_is_closed(
    ours: Authority, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    monkeypatch.setattr(channels, "HANDSHAKE_TIMEOUT_MS", 200)
    async with serving(protection(**ours.tls()) if encrypted else PLAIN) as served:
        host, _, port = served.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await asyncio.wait_for(reader.read(), 60)  # returns at the end of what the server has to say
        assert reader.at_eof()
        writer.close()


def test_files_that_do_not_belong_together_are_named_at_start(ours: Authority, theirs: Authority) -> None:
    mixed = {**ours.issue(), "key": theirs.issue()["key"]}
    with pytest.raises(
        ConfigError, match=r"security\.internal_tls\.certificate: .* no certificate with its key"
    ):
        protection(**mixed)


def test_an_authority_that_is_none_is_named_at_start(ours: Authority, tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing of the kind")
    with pytest.raises(ConfigError, match=r"security\.internal_tls\.ca: .* holds no certificates"):
        protection(**ours.issue(), ca=str(tmp_path / "ca"))


async def test_a_server_with_an_authority_but_no_certificate_does_not_start(ours: Authority) -> None:
    server = channels.make_server()
    with pytest.raises(ConfigError, match=r"security\.internal_tls\.ca is set, but a server needs"):
        channels.listen(server, "127.0.0.1", 0, protection(ca=str(ours.ca)))


@pytest.mark.parametrize(
    ("host", "is_exposed"),
    [
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.1.2.3", True),
        ("verifier.example", True),
    ],
)
def test_which_hosts_others_can_reach(host: str, is_exposed: bool) -> None:
    assert exposed(host) is is_exposed


async def test_listening_to_others_in_plaintext_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    bare = internal_protection(SecurityConfig())
    with caplog.at_level(logging.WARNING, "outrider.wire.channels"):
        for host in ("127.0.0.1", "0.0.0.0"):
            server = channels.make_server()
            channels.listen(server, host, 0, bare)
            await server.stop(None)
    (record,) = caplog.records
    assert "set security.internal_tls.certificate and security.internal_tls.key" in record.getMessage()
    assert public_protection(SecurityConfig()).section == "security.public_tls"
