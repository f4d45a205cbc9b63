"""Typed clients of the services and typed base classes of their servers.

protoc's own gRPC modules carry no types. Clients here have one attribute for each rpc, named as
in the proto file; servers have one abstract method for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from typing import Protocol, TypeVar, cast

from grpc import aio

from outrider.wire.v1 import drafter_pb2 as d
from outrider.wire.v1 import drafter_pb2_grpc, generation_pb2_grpc, verifier_pb2_grpc
from outrider.wire.v1 import generation_pb2 as g
from outrider.wire.v1 import verifier_pb2 as v

VERIFIER = "outrider.v1.Verifier"
DRAFTER = "outrider.v1.Drafter"
GENERATION = "outrider.v1.Generation"


T = TypeVar("T")
Answers = AsyncIterator[T] | Awaitable[None]
"""A server's stream: an iterator of answers, or a coroutine that writes them to its context."""


class VerifierClient(Protocol):
    """Calls of a Verifier."""

    GetInfo: aio.UnaryUnaryMultiCallable[v.VerifierGetInfoRequest, v.VerifierGetInfoResponse]
    Generate: aio.UnaryStreamMultiCallable[v.VerifierGenerateRequest, v.VerifierGenerateResponse]
    Resume: aio.UnaryStreamMultiCallable[v.VerifierResumeRequest, v.VerifierResumeResponse]
    Cancel: aio.UnaryUnaryMultiCallable[v.VerifierCancelRequest, v.VerifierCancelResponse]


class DrafterClient(Protocol):
    """Calls of a Drafter."""

    GetInfo: aio.UnaryUnaryMultiCallable[d.DrafterGetInfoRequest, d.DrafterGetInfoResponse]
    Draft: aio.StreamStreamMultiCallable[d.DraftRequest, d.DraftResponse]


class GenerationClient(Protocol):
    """Calls of a gateway."""

    Generate: aio.UnaryStreamMultiCallable[g.GenerateRequest, g.GenerateResponse]
    Resume: aio.UnaryStreamMultiCallable[g.ResumeRequest, g.ResumeResponse]
    Cancel: aio.UnaryUnaryMultiCallable[g.CancelRequest, g.CancelResponse]
    ListModels: aio.UnaryUnaryMultiCallable[g.ListModelsRequest, g.ListModelsResponse]


def verifier_client(channel: aio.Channel) -> VerifierClient:
    """A client over `channel`."""
    return cast(VerifierClient, verifier_pb2_grpc.VerifierStub(channel))  # type: ignore[no-untyped-call]


def drafter_client(channel: aio.Channel) -> DrafterClient:
    """A client over `channel`."""
    return cast(DrafterClient, drafter_pb2_grpc.DrafterStub(channel))  # type: ignore[no-untyped-call]


def generation_client(channel: aio.Channel) -> GenerationClient:
    """A client over `channel`."""
    return cast(GenerationClient, generation_pb2_grpc.GenerationStub(channel))  # type: ignore[no-untyped-call]


class VerifierService(ABC):
    """What a server of Verifier implements."""

    @abstractmethod
    async def GetInfo(
        self,
        request: v.VerifierGetInfoRequest,
        context: aio.ServicerContext[v.VerifierGetInfoRequest, v.VerifierGetInfoResponse],
    ) -> v.VerifierGetInfoResponse: ...

    @abstractmethod
    def Generate(
        self,
        request: v.VerifierGenerateRequest,
        context: aio.ServicerContext[v.VerifierGenerateRequest, v.VerifierGenerateResponse],
    ) -> Answers[v.VerifierGenerateResponse]: ...

    @abstractmethod
    def Resume(
        self,
        request: v.VerifierResumeRequest,
        context: aio.ServicerContext[v.VerifierResumeRequest, v.VerifierResumeResponse],
    ) -> Answers[v.VerifierResumeResponse]: ...

    @abstractmethod
    async def Cancel(
        self,
        request: v.VerifierCancelRequest,
        context: aio.ServicerContext[v.VerifierCancelRequest, v.VerifierCancelResponse],
    ) -> v.VerifierCancelResponse: ...


class DrafterService(ABC):
    """What a server of Drafter implements."""

    @abstractmethod
    async def GetInfo(
        self,
        request: d.DrafterGetInfoRequest,
        context: aio.ServicerContext[d.DrafterGetInfoRequest, d.DrafterGetInfoResponse],
    ) -> d.DrafterGetInfoResponse: ...

    @abstractmethod
    def Draft(
        self,
        request_iterator: AsyncIterable[d.DraftRequest],
        context: aio.ServicerContext[d.DraftRequest, d.DraftResponse],
    ) -> Answers[d.DraftResponse]: ...


class GenerationService(ABC):
    """What a server of Generation implements."""

    @abstractmethod
    def Generate(
        self,
        request: g.GenerateRequest,
        context: aio.ServicerContext[g.GenerateRequest, g.GenerateResponse],
    ) -> Answers[g.GenerateResponse]: ...

    @abstractmethod
    def Resume(
        self,
        request: g.ResumeRequest,
        context: aio.ServicerContext[g.ResumeRequest, g.ResumeResponse],
    ) -> Answers[g.ResumeResponse]: ...

    @abstractmethod
    async def Cancel(
        self,
        request: g.CancelRequest,
        context: aio.ServicerContext[g.CancelRequest, g.CancelResponse],
    ) -> g.CancelResponse: ...

    @abstractmethod
    async def ListModels(
        self,
        request: g.ListModelsRequest,
        context: aio.ServicerContext[g.ListModelsRequest, g.ListModelsResponse],
    ) -> g.ListModelsResponse: ...


def add_verifier(server: aio.Server, service: VerifierService) -> None:
    """Serve `service` on `server`."""
    verifier_pb2_grpc.add_VerifierServicer_to_server(service, server)  # type: ignore[no-untyped-call]


def add_drafter(server: aio.Server, service: DrafterService) -> None:
    """Serve `service` on `server`."""
    drafter_pb2_grpc.add_DrafterServicer_to_server(service, server)  # type: ignore[no-untyped-call]


def add_generation(server: aio.Server, service: GenerationService) -> None:
    """Serve `service` on `server`."""
    generation_pb2_grpc.add_GenerationServicer_to_server(service, server)  # type: ignore[no-untyped-call]
