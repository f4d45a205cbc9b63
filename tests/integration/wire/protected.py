"""A protected server of both internal services, for tests of links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from outrider.core.models import DrafterInfo, ModelInfo
from outrider.wire import channels, convert, services
from outrider.wire.messages import VerifierInfo
from outrider.wire.protection import Protection
from outrider.wire.v1 import drafter_pb2 as d
from outrider.wire.v1 import verifier_pb2 as v


class Verifier(services.VerifierService):
    """Says who it is; streams until it is released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.calls: list[str] = []

    async def GetInfo(self, request: Any, context: Any) -> v.VerifierGetInfoResponse:
        self.calls.append("GetInfo")
        return convert.verifier_info_to_proto(VerifierInfo(ModelInfo("tiny")))

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[v.VerifierGenerateResponse]:
        self.calls.append("Generate")
        yield v.VerifierGenerateResponse()
        await self.release.wait()
        yield v.VerifierGenerateResponse()

    async def Resume(self, request: Any, context: Any) -> AsyncIterator[v.VerifierResumeResponse]:
        self.calls.append("Resume")
        yield v.VerifierResumeResponse()

    async def Cancel(self, request: Any, context: Any) -> v.VerifierCancelResponse:
        self.calls.append("Cancel")
        return v.VerifierCancelResponse()


class Drafter(services.DrafterService):
    """Says who it is; answers each message with an empty one."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def GetInfo(self, request: Any, context: Any) -> d.DrafterGetInfoResponse:
        self.calls.append("GetInfo")
        info = DrafterInfo(ModelInfo("tiny"), "fixed", (), 4, 8, "i")
        return convert.drafter_info_to_proto(info)

    async def Draft(self, request_iterator: Any, context: Any) -> AsyncIterator[d.DraftResponse]:
        self.calls.append("Draft")
        async for _ in request_iterator:
            yield d.DraftResponse()


class Served:
    """What is served, and where."""

    def __init__(self, address: str, verifier: Verifier, drafter: Drafter) -> None:
        self.address, self.verifier, self.drafter = address, verifier, drafter


@asynccontextmanager
async def serving(protection: Protection) -> AsyncIterator[Served]:
    """Both services, with health, on one protected port."""
    server, verifier, drafter = channels.make_server(protection=protection), Verifier(), Drafter()
    services.add_verifier(server, verifier)
    services.add_drafter(server, drafter)
    health = await channels.add_health(server, (services.VERIFIER, services.DRAFTER))
    channels.add_reflection(server, (services.VERIFIER,))
    address = channels.listen(server, "127.0.0.1", 0, protection)
    await server.start()
    await health.set_serving(True)
    try:
        yield Served(address, verifier, drafter)
    finally:
        await server.stop(None)
