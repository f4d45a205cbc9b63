"""A gateway's answers to the calls that Serve's proxy makes: keys, limits, statuses, clients that go away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from outrider.config.schema import OutriderConfig
from outrider.gateway.auth.entries import new_key
from outrider.gateway.parts import Parts, assembled
from outrider.rayserve.grpc_ingress import CallEndedError, GenerationIngress
from outrider.wire.v1 import generation_pb2 as pb
from tests.integration.gateway.conftest import config_for, make_verifier, model_folder
from tests.integration.gateway.scripted_verifier import ScriptedVerifier, running
from tests.integration.gateway.test_secured import ALICE, write_keys

__all__ = ["make_verifier", "model_folder"]  # fixtures

REQUEST = pb.GenerateRequest(prompt="hello").SerializeToString()
CANCEL = pb.CancelRequest(generation_id="0" * 32).SerializeToString()


class Call:
    """A call as Serve tells of it, with what was done to it."""

    def __init__(self, key: str = "") -> None:
        self.sent = [("authorization", f"Bearer {key}")] if key else []
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.trailing: dict[str, str] = {}

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self.sent

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None:
        self.trailing = dict(trailing_metadata)


class Ingress(GenerationIngress):
    """With what it stands on."""

    def __init__(self, parts: Parts, verifier: ScriptedVerifier) -> None:
        super().__init__(parts, max_bytes=1024, cancel_elsewhere=self.ask_others)
        self.asked: list[tuple[str, str]] = []
        self.parts = parts
        self.verifier = verifier

    async def ask_others(self, generation_id: str, tenant: str) -> bool:
        """There is another gateway, which runs what is called "there"."""
        self.asked.append((generation_id, tenant))
        return generation_id == "there"


Started = Callable[..., AbstractAsyncContextManager[Ingress]]


@pytest.fixture
def ingress(model_folder: Path, make_verifier: Any, tmp_path: Path) -> Started:
    """Starts a gateway; with `limits`, one that asks for keys, of which alice has these."""

    @asynccontextmanager
    async def start(**limits: int) -> AsyncIterator[Ingress]:
        verifier = make_verifier()
        async with running(verifier) as address:
            config = config_for(model_folder, address)
            if limits:
                keys = write_keys(tmp_path / "keys", **limits)
                config = OutriderConfig.model_validate(
                    config.model_dump() | {"security": {"api_keys_file": keys}}
                )
            async with assembled(config, asyncio.Event()) as parts:
                assert parts is not None
                yield Ingress(parts, verifier)

    return start


async def stream(ingress: Ingress, call: Call, request: bytes = REQUEST) -> list[pb.GenerateResponse]:
    return [message async for message in ingress.generate(request, call)]


async def failed(ingress: Ingress, call: Call, request: bytes = REQUEST) -> Call:
    with pytest.raises(CallEndedError):
        await stream(ingress, call, request)
    return call


async def test_a_key_is_asked_for_and_its_limits_are_kept(ingress: Started) -> None:
    async with ingress(requests_per_minute=1) as up:
        for key in ("", new_key()):
            refused = await failed(up, Call(key))
            assert refused.code is grpc.StatusCode.UNAUTHENTICATED
            assert refused.trailing == {"outrider-error-label": "unauthenticated"}
        assert not up.verifier.sessions
        assert (await stream(up, Call(ALICE)))[-1].HasField("finished")
        (session,) = up.verifier.sessions.values()
        assert session.request.tenant == "alice"
        limited = await failed(up, Call(ALICE))
        assert limited.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(limited.trailing["retry-after-ms"]) > 0
        assert not (await up.cancel(CANCEL, Call(ALICE))).found, "ending one is not counted"
        there = pb.CancelRequest(generation_id="there").SerializeToString()
        assert (await up.cancel(there, Call(ALICE))).found
        assert up.asked == [("0" * 32, "alice"), ("there", "alice")]
        refused = Call()
        assert await up.cancel(CANCEL, refused) == pb.CancelResponse()
        assert refused.code is grpc.StatusCode.UNAUTHENTICATED


async def test_requests_that_are_none_or_too_large(ingress: Started) -> None:
    async with ingress() as up:
        unreadable = await failed(up, Call(), b"\xff")
        assert unreadable.code is grpc.StatusCode.INVALID_ARGUMENT
        assert unreadable.details.startswith("the request cannot be read (")
        large = await failed(up, Call(), bytes(1025))
        assert large.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert large.details == "Received message larger than max (1025 vs. 1024)"


async def test_what_a_defect_says_stays_here(ingress: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ingress() as up:

        def break_down(*_: object) -> None:
            raise ValueError("a secret")

        monkeypatch.setattr(up.parts.generations, "open", break_down)
        broken = await failed(up, Call())
        assert (broken.code, broken.details) == (grpc.StatusCode.INTERNAL, "internal error")
        assert "secret" not in str(broken.trailing)


async def test_what_nobody_reads_any_more_ends(ingress: Started) -> None:
    async with ingress() as up:
        hold = asyncio.Event()

        async def pace(session: object, index: int) -> None:
            if index:
                await hold.wait()

        up.verifier.pace = pace
        call = Call()
        async with aclosing(up.generate(REQUEST, call)) as messages:  # type: ignore[type-var]  # a generator
            async for message in messages:
                if message.HasField("delta"):
                    assert len(up.parts.generations) == 1
                    break
        assert len(up.parts.generations) == 0
        assert call.code is None
        await up.parts.generations.settled()
        assert up.verifier.parked == list(up.verifier.sessions)
