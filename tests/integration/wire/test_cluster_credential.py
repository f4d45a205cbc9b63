"""The cluster's credential on internal links, over real sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.config.schema import SecurityConfig
from outrider.core.errors import ConfigError, UnauthenticatedError
from outrider.wire import channels, cluster, convert, errors, services
from outrider.wire.cluster import ClusterToken
from outrider.wire.protection import PLAIN, Protection, internal_protection
from outrider.wire.v1 import drafter_pb2 as d
from outrider.wire.v1 import verifier_pb2 as v
from tests.certificates import Authority, replace
from tests.integration.wire.protected import serving

OLD = "old-secret-of-the-cluster"
NEW = "new-secret-of-the-cluster"


def shared(folder: Path, *tokens: str, name: str = "token", **settings: Any) -> Protection:
    path = folder / name
    replace(path, "\n".join(tokens).encode())
    return internal_protection(SecurityConfig.model_validate({"cluster_token_file": str(path), **settings}))


async def one_request(_: object = None) -> Any:
    yield d.DraftRequest()


def calls(channel: aio.Channel) -> Iterator[tuple[str, Any]]:
    """One call of each method, not begun yet."""
    verifier, drafter = services.verifier_client(channel), services.drafter_client(channel)
    yield "verifier.GetInfo", lambda: verifier.GetInfo(convert.verifier_info_request(), timeout=10)
    yield "verifier.Generate", lambda: verifier.Generate(v.VerifierGenerateRequest(), timeout=10)
    yield "verifier.Resume", lambda: verifier.Resume(v.VerifierResumeRequest(), timeout=10)
    yield "verifier.Cancel", lambda: verifier.Cancel(v.VerifierCancelRequest(), timeout=10)
    yield "drafter.GetInfo", lambda: drafter.GetInfo(convert.drafter_info_request(), timeout=10)
    yield "drafter.Draft", lambda: drafter.Draft(one_request(), timeout=10)


async def code_of(call: Any) -> grpc.StatusCode:
    """How a call of any kind ends."""
    try:
        if isinstance(call, aio.UnaryUnaryCall):
            await call
        else:
            [answer async for answer in call]
    except aio.AioRpcError as error:
        assert isinstance(errors.from_rpc_error(error), UnauthenticatedError)
    code: grpc.StatusCode = await call.code()
    return code


async def test_every_method_serves_callers_with_the_credential(tmp_path: Path) -> None:
    async with serving(shared(tmp_path, OLD)) as served:
        served.verifier.release.set()
        async with channels.open_channel(served.address, protection=shared(tmp_path, OLD)) as channel:
            for name, call in calls(channel):
                assert await code_of(call()) is grpc.StatusCode.OK, name
    assert served.verifier.calls == ["GetInfo", "Generate", "Resume", "Cancel"]
    assert served.drafter.calls == ["GetInfo", "Draft"]


@pytest.mark.parametrize("shown", ["", "wrong-secret-of-the-cluster", OLD[:-1], OLD + "x"])
async def test_no_method_serves_callers_without_it(tmp_path: Path, shown: str) -> None:
    client = PLAIN if not shown else shared(tmp_path, shown, name="theirs")
    async with (
        serving(shared(tmp_path, OLD)) as served,
        channels.open_channel(served.address, protection=client) as channel,
    ):
        for name, call in calls(channel):
            assert await code_of(call()) is grpc.StatusCode.UNAUTHENTICATED, name
    assert not served.verifier.calls and not served.drafter.calls


async def test_the_refusal_says_nothing_about_what_was_wrong(tmp_path: Path) -> None:
    details = set()
    async with serving(shared(tmp_path, OLD)) as served:
        for client in (PLAIN, shared(tmp_path, NEW, name="theirs")):
            async with channels.open_channel(served.address, protection=client) as channel:
                with pytest.raises(aio.AioRpcError) as caught:
                    await services.verifier_client(channel).GetInfo(v.VerifierGetInfoRequest(), timeout=10)
                details.add(caught.value.details())
    assert details == {"the cluster's credential is missing or wrong (security.cluster_token_file)"}


async def test_what_an_intruder_sends_is_not_even_parsed(tmp_path: Path) -> None:
    """INVALID_ARGUMENT would mean that it was."""
    async with serving(shared(tmp_path, OLD)) as served, channels.open_channel(served.address) as channel:
        call = channel.unary_unary(f"/{services.VERIFIER}/Cancel")(b"\xff\xff\xff", timeout=10)
        with pytest.raises(aio.AioRpcError) as caught:
            await call
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_probes_need_no_credential_but_reflection_does(tmp_path: Path) -> None:
    async with serving(shared(tmp_path, OLD)) as served, channels.open_channel(served.address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(
            iter([b""]), timeout=10
        )
        assert await code_of(call) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_token_is_changed_without_a_refused_call(tmp_path: Path) -> None:
    """Add the new one everywhere, show it everywhere, take the old one away: in any order of services."""
    server, client = tmp_path / "server", tmp_path / "client"
    for path in (server, client):
        path.mkdir()
    steps = [(OLD, NEW), (NEW, OLD), (NEW,)]
    async with (
        serving(shared(server, OLD)) as served,
        channels.open_channel(served.address, protection=shared(client, OLD)) as channel,
    ):
        stub = services.verifier_client(channel)
        for step, tokens in enumerate(steps):
            for place in (server, client) if step % 2 else (client, server):
                replace(place / "token", "\n".join(tokens).encode())
                await stub.GetInfo(v.VerifierGetInfoRequest(), timeout=10)
        assert ClusterToken(str(client / "token")).metadata() == ("authorization", f"Bearer {NEW}")


async def test_with_tls_a_certificate_alone_is_not_enough(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    with_token = shared(tmp_path, OLD, internal_tls=ours.tls("server"))
    only_tls = internal_protection(SecurityConfig.model_validate({"internal_tls": ours.tls("client")}))
    both = shared(tmp_path, OLD, internal_tls=ours.tls("client"))
    async with serving(with_token) as served:
        for client, expected in ((only_tls, "UNAUTHENTICATED"), (both, "OK")):
            async with channels.open_channel(served.address, protection=client) as channel:
                _, call = next(calls(channel))
                assert (await code_of(call())).name == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\n \n", "must hold 1 or 2 tokens, one a line, got 0"),
        (b"a" * 20 + b"\n" + b"b" * 20 + b"\n" + b"c" * 20, "got 3"),
        (b"guessable", "must have 16 to 512 characters, got 9"),
        (b"with a space in the middle", "printable ASCII"),
        ("schlüssel-schlüssel".encode(), "printable ASCII"),
    ],
)
def test_a_file_that_holds_no_usable_token_is_refused_and_not_quoted(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"security\.cluster_token_file: ") as caught:
        ClusterToken(str(path))
    assert reason in str(caught.value)
    for line in content.splitlines():
        assert not line.strip() or line.decode() not in str(caught.value)


async def test_the_token_is_in_no_log_line_and_no_repr(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    protection = shared(tmp_path, OLD)
    with caplog.at_level(logging.DEBUG):
        async with serving(protection) as served, channels.open_channel(served.address) as channel:
            for _, call in calls(channel):
                await code_of(call())
    assert any("without the cluster's credential" in record.getMessage() for record in caplog.records)
    assert OLD not in caplog.text and OLD not in repr(protection) and OLD not in repr(protection.token)


async def test_whoever_is_not_let_in_holds_no_call_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "REFUSED_S", 0.2)

    async def nothing() -> Any:
        await asyncio.sleep(600)
        yield b""

    async with serving(shared(tmp_path, OLD)) as served, channels.open_channel(served.address) as channel:
        for name in (
            "Verifier/GetInfo",
            "Verifier/Generate",
            "Verifier/Resume",
            "Verifier/Cancel",
            "Drafter/Draft",
        ):
            call = channel.stream_stream(f"/outrider.v1.{name}")(nothing())
            async with asyncio.timeout(30):
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED, name
