"""The link to one verifier, and the sessions that run over it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc import aio

from outrider.core.errors import (
    InternalError,
    ModelMismatchError,
    OutriderError,
    ProtocolError,
    UnavailableError,
)
from outrider.core.models import check_protocol
from outrider.gateway.placement import Candidate
from outrider.gateway.signals import Signal
from outrider.wire import convert, metadata, services
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import CancelSession, ResumeSession, SessionEvent, SessionRequest, VerifierInfo
from outrider.wire.v1.verifier_pb2 import VerifierGenerateResponse, VerifierResumeResponse

_LOG = logging.getLogger(__name__)

CANCEL_TIMEOUT_S = 2.0

Metadata = Sequence[tuple[str, str]]
OpenChannel = Callable[[str], aio.Channel]

_LOST = "the connection to the verifier broke"
_OF_GRPC = {
    grpc.StatusCode.CANCELLED: _LOST,
    grpc.StatusCode.UNKNOWN: _LOST,
    grpc.StatusCode.INTERNAL: _LOST,
    grpc.StatusCode.UNAVAILABLE: "the verifier cannot be reached",
}
"""What gRPC makes of a connection that broke or cannot be had, if no service gave the status."""


class SessionStream:
    """One session as a verifier streams it. Whoever opened it must `close` it."""

    def __init__(self, link: VerifierLink, call: aio.UnaryStreamCall[Any, Any], session_id: str) -> None:
        self.link = link
        self.session_id = session_id
        self._call = call
        self._severed: OutriderError | None = None

    async def next(self) -> SessionEvent | None:
        """The next event; None if the stream is over.

        Raises:
            OutriderError: what the verifier answered, or that it is away or broke the protocol.
        """
        if self._severed is not None:
            raise self._severed
        try:
            response = await self._call.read()
            if not isinstance(response, VerifierGenerateResponse | VerifierResumeResponse):
                return None  # aio.EOF
            return convert.session_event_from_proto(response.event)
        except asyncio.CancelledError:
            if self._severed is None or _being_cancelled():
                raise
            raise self._severed from None
        except aio.AioRpcError as error:
            raise self._failed(error) from error
        except ProtocolError as error:
            _LOG.error("verifier %s broke the protocol: %s", self.link.address, error)
            raise InternalError(f"the verifier broke the protocol: {error}") from error

    def _failed(self, error: aio.AioRpcError) -> OutriderError:
        """What a status stands for. gRPC's own texts hold addresses, which are not for clients."""
        code = error.code()
        if code is grpc.StatusCode.UNAUTHENTICATED:  # ours, not the client's
            return UnavailableError("the verifier refused this gateway: see security.cluster_token_file")
        if metadata.value(error.trailing_metadata(), metadata.ERROR_LABEL) or code not in _OF_GRPC:
            return from_rpc_error(error)
        _LOG.info("verifier %s: %s: %s", self.link.address, code.name, error.details())
        return UnavailableError(_OF_GRPC[code])

    def sever(self, error: OutriderError) -> None:
        """Break it off: whoever waits for the next event gets `error`."""
        self._severed = error
        self._call.cancel()

    def close(self) -> None:
        """Give it up, if it still runs: the verifier sees its stream cancelled. Idempotent."""
        if self in self.link.streams:
            self.link.streams.remove(self)
            self._call.cancel()


class VerifierLink:
    """One verifier."""

    def __init__(self, address: str, open_channel: OpenChannel, moved: Signal) -> None:
        """`moved` is told whenever the verifier comes, goes, or begins to drain."""
        self.address = address
        self.info: VerifierInfo | None = None  # None: away, or refused
        self.suspect = False  # a call found it away: it is being asked
        self.refusal: ModelMismatchError | None = None  # why it must not be used
        self.listed = True  # the registry knows it
        self.leaving = ""  # instance that is about to stop, as the registry says
        self.streams: set[SessionStream] = set()  # of this gateway
        self.changed = asyncio.Event()  # set when a call found it away
        self.asked = Signal()  # told after each answer to `ask`, also if there was none
        self._moved = moved
        self._own_then = 0  # streams of this gateway when it told its load
        self._open_channel = open_channel
        self._closing: set[asyncio.Task[None]] = set()
        self._channel = open_channel(address)
        self._client = services.verifier_client(self._channel)

    @property
    def draining(self) -> bool:
        """It is about to stop."""
        return self.info is not None and (
            self.info.draining or (bool(self.leaving) and self.leaving == self.info.instance_id)
        )

    @property
    def over(self) -> bool:
        """It has left the registry, does not answer, and nothing runs over it."""
        return not self.listed and self.info is None and not self.streams

    @property
    def candidate(self) -> Candidate:
        """How it stands as a place for a session: its own word, and what was sent there since."""
        load = self.info.load if self.info is not None else None
        if load is None or self.suspect:
            return Candidate(self.address, alive=False)
        others = max(0, load.running + load.waiting - self._own_then)
        return Candidate(
            self.address,
            sessions=others + len(self.streams),
            capacity=load.max_running,
            room=load.max_running + load.max_waiting,
            alive=True,
            draining=self.draining,
        )

    async def ask(self, timeout_s: float) -> VerifierInfo:
        """Ask who is there.

        Raises:
            OutriderError: nobody that we can work with.
        """
        try:
            answer = await self._client.GetInfo(convert.verifier_info_request(), timeout=timeout_s)
            info = convert.verifier_info_from_proto(answer)
            check_protocol(info.protocol_version, f"verifier {self.address}")
        except aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return info

    def generate(self, request: SessionRequest, timeout_s: float, metadata: Metadata) -> SessionStream:
        """Start a session there, or restore one."""
        call = self._client.Generate(
            convert.session_request_to_proto(request), timeout=timeout_s, metadata=tuple(metadata)
        )
        return self._streaming(call, request.session_id)

    def resume(self, wanted: ResumeSession, timeout_s: float, metadata: Metadata) -> SessionStream:
        """Go on with a session there."""
        call = self._client.Resume(
            convert.resume_to_proto(wanted), timeout=timeout_s, metadata=tuple(metadata)
        )
        return self._streaming(call, wanted.session_id)

    async def cancel(self, cancel: CancelSession) -> bool:
        """Tell the verifier to end or to park a session; False if it cannot be told or knows of none."""
        try:
            request = convert.cancel_to_proto(cancel)
            answer = await self._client.Cancel(request, timeout=CANCEL_TIMEOUT_S)
        except aio.AioRpcError as error:
            _LOG.warning("session %s: cancel failed: %s", cancel.session_id, error.code().name)
            return False
        return answer.found

    def found(self, info: VerifierInfo | None) -> None:
        """Note who is there; None: nobody that we can work with. Streams go on for as long as they do."""
        before = self.info is not None, self.suspect, self.draining
        self.info = info
        self.suspect = False
        if info is not None:
            self.refusal = None
            self._own_then = len(self.streams)
        if before != (info is not None, self.suspect, self.draining):
            self._moved.notify()

    def refuse(self, error: ModelMismatchError) -> None:
        """Note that somebody is there who must not be used."""
        self.refusal = error
        self.found(None)
        self._moved.notify()

    def lost(self) -> None:
        """A call found the verifier away: it is asked at once, and gets no sessions until it has answered."""
        if self.info is not None:
            self.suspect = True
        self.changed.set()

    def sever(self, reason: str) -> None:
        """Count it as gone: break its streams off and start with a new connection."""
        self.found(None)
        error = UnavailableError(f"verifier {self.address} {reason}")
        for stream in list(self.streams):
            stream.sever(error)
        self._close_later(self._channel)
        self._channel = self._open_channel(self.address)
        self._client = services.verifier_client(self._channel)

    async def close(self) -> None:
        """Close the connection, and with it all its calls."""
        await self._channel.close()
        await asyncio.gather(*self._closing)

    def _streaming(self, call: aio.UnaryStreamCall[Any, Any], session_id: str) -> SessionStream:
        stream = SessionStream(self, call, session_id)
        self.streams.add(stream)
        return stream

    def _close_later(self, channel: aio.Channel) -> None:
        task = asyncio.create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
