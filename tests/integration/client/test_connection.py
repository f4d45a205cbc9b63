"""Retries, credentials and broken gateways, against a gateway that plays a script."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from outrider.client import Connection, tls_credentials
from outrider.config.schema import SecurityConfig
from outrider.core import errors
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.wire import channels, convert, services
from outrider.wire.errors import abort
from outrider.wire.messages import GenerationDelta, GenerationEvent, GenerationFinished, GenerationStarted
from outrider.wire.protection import public_protection
from outrider.wire.v1 import generation_pb2 as pb
from tests.certificates import SERVER_NAME, Authority
from tests.integration.client.faces import Blocking, Face

STARTED = GenerationStarted("g-1", "m", 5)
DELTA = GenerationDelta("hi", (7,), 0, 0)
FINISHED = GenerationFinished(FinishReason.LENGTH, Usage(1, 1, 0), SpeculationStats())
AWAY = errors.UnavailableError("no verifier is available")
WHOLE = (STARTED, DELTA, FINISHED)
Step = GenerationEvent | errors.OutriderError


class Scripted(services.GenerationService):
    """Each attempt plays the next list of events and errors; the last one again and again."""

    def __init__(self, *attempts: tuple[Step, ...]) -> None:
        self._attempts: Iterator[tuple[Step, ...]] = itertools.chain(attempts, itertools.repeat(attempts[-1]))
        self.seen: list[dict[str, Any]] = []  # metadata of each attempt

    async def Generate(self, request: Any, context: Any) -> None:
        self.seen.append(dict(context.invocation_metadata()))
        for step in next(self._attempts):
            if isinstance(step, errors.OutriderError):
                await abort(context, step)
            else:
                await context.write(convert.generation_event_to_proto(step))

    async def Resume(self, request: Any, context: Any) -> None:
        raise AssertionError("nobody resumes here")

    async def Cancel(self, request: Any, context: Any) -> pb.CancelResponse:
        self.seen.append(dict(context.invocation_metadata()))
        return pb.CancelResponse(found=True)

    async def ListModels(self, request: Any, context: Any) -> pb.ListModelsResponse:
        self.seen.append(dict(context.invocation_metadata()))
        if len(self.seen) < 3:
            await abort(context, AWAY)
        return pb.ListModelsResponse()


@asynccontextmanager
async def playing(service: Scripted) -> AsyncIterator[str]:
    server = channels.make_server()
    services.add_generation(server, service)
    address = channels.listen(server, "127.0.0.1", 0)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


@asynccontextmanager
async def connected(face: type[Blocking], connection: Connection) -> AsyncIterator[Face]:
    client = face(connection)
    try:
        yield client
    finally:
        await client.close()


async def test_a_gateway_that_is_away_for_a_moment(face: type[Blocking]) -> None:
    service = Scripted((AWAY,), (AWAY,), WHOLE)
    async with playing(service) as address, connected(face, Connection(address)) as client:
        assert (await client.generate("x")).text == "hi"
    assert len(service.seen) == 3


async def test_it_is_not_tried_for_ever(face: type[Blocking]) -> None:
    service = Scripted((AWAY,))
    async with playing(service) as address, connected(face, Connection(address)) as client:
        with pytest.raises(errors.UnavailableError, match="no verifier"):
            await client.generate("x")
    assert len(service.seen) == 5


@pytest.mark.parametrize("before", [(STARTED,), (STARTED, DELTA)])
async def test_the_same_request_is_never_made_again_after_the_first_event(
    face: type[Blocking], before: tuple[Step, ...]
) -> None:
    service = Scripted((*before, AWAY), WHOLE)
    async with playing(service) as address, connected(face, Connection(address, resume=False)) as client:
        with pytest.raises(errors.UnavailableError):
            await client.generate("x")
    assert len(service.seen) == 1


@pytest.mark.parametrize(
    "error",
    [
        errors.OverloadedError("full"),
        errors.InvalidRequestError("bad", field="x"),
        errors.ModelNotFoundError("none"),
        errors.InternalError("internal error"),
    ],
)
async def test_other_errors_are_final(face: type[Blocking], error: errors.OutriderError) -> None:
    service = Scripted((error,), WHOLE)
    async with playing(service) as address, connected(face, Connection(address)) as client:
        with pytest.raises(type(error)):
            await client.generate("x")
    assert len(service.seen) == 1


async def test_retries_can_be_switched_off(face: type[Blocking]) -> None:
    service = Scripted((AWAY,), WHOLE)
    async with playing(service) as address, connected(face, Connection(address, retry=False)) as client:
        with pytest.raises(errors.UnavailableError):
            await client.generate("x")
    assert len(service.seen) == 1


async def test_other_calls_are_tried_again_too(face: type[Blocking]) -> None:
    service = Scripted(WHOLE)
    async with playing(service) as address, connected(face, Connection(address)) as client:
        assert await client.models() == []
    assert len(service.seen) == 3


async def test_nobody_there(face: type[Blocking]) -> None:
    async with playing(Scripted(WHOLE)) as address:
        pass
    async with connected(face, Connection(address)) as client:
        for call in (client.models(), client.generate("x")):
            with pytest.raises(errors.UnavailableError):
                await call


async def test_a_stream_that_ends_too_early(face: type[Blocking]) -> None:
    async with (
        playing(Scripted((STARTED, DELTA))) as address,
        connected(face, Connection(address)) as client,
    ):
        with pytest.raises(errors.ProtocolError, match="before the generation was over"):
            await client.generate("x")


async def test_the_api_key_goes_along(face: type[Blocking]) -> None:
    service = Scripted(WHOLE)
    async with playing(service) as address:
        async with connected(face, Connection(address, api_key="k-1")) as client:
            await client.generate("x")
            await client.cancel("g-1")
            await client.models()
        async with connected(face, Connection(address)) as client:
            await client.generate("x")
    *with_key, without = service.seen
    assert all(sent["authorization"] == "Bearer k-1" for sent in with_key)
    assert "authorization" not in without


async def test_tls(face: type[Blocking]) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    server = channels.make_server()
    services.add_generation(server, Scripted(WHOLE))
    credentials = grpc.ssl_server_credentials([(own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes())])
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
    await server.start()
    try:
        trusted, other = (
            Connection(address, grpc.ssl_channel_credentials(one.cert_pem.bytes()), retry=False)
            for one in (authority, stranger)
        )
        async with connected(face, trusted) as client:
            assert (await client.generate("x")).text == "hi"
        for wrong in (other, Connection(address, retry=False)):
            async with connected(face, wrong) as client:
                with pytest.raises(errors.UnavailableError):
                    await client.generate("x", timeout_s=30)
    finally:
        await server.stop(None)


async def test_mutual_tls_from_files_and_a_name_that_is_not_the_address(
    face: type[Blocking], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    server_tls, own = authority.tls("server"), authority.issue("client")
    protection = public_protection(SecurityConfig.model_validate({"public_tls": server_tls}))
    server = channels.make_server()
    services.add_generation(server, Scripted(WHOLE))
    address = channels.listen(server, "127.0.0.1", 0, protection)
    await server.start()
    try:
        mutual = tls_credentials(authority.ca, own["certificate"], own["key"])
        for credentials, name, is_served in (
            (mutual, SERVER_NAME, True),
            (mutual, "elsewhere.test", False),
            (tls_credentials(authority.ca), SERVER_NAME, False),
        ):
            connection = Connection(address, credentials, server_name=name, retry=False)
            async with connected(face, connection) as client:
                if is_served:
                    assert (await client.generate("x")).text == "hi"
                else:
                    with pytest.raises(errors.UnavailableError):
                        await client.generate("x", timeout_s=30)
    finally:
        await server.stop(None)


def test_files_that_make_no_credentials_are_named(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue()
    with pytest.raises(errors.ConfigError, match="go together"):
        tls_credentials(certificate=own["certificate"])
    with pytest.raises(errors.ConfigError, match=r"cannot read .*absent\.pem"):
        tls_credentials(tmp_path / "absent.pem")


def test_the_key_is_not_in_the_text_of_a_connection() -> None:
    assert "ork_secret" not in repr(Connection("gateway:9000", api_key="ork_secret"))
