"""The link to one verifier, and the sessions that run over it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from grpc import aio

from outrider.core.errors import InternalError, ProtocolError
from outrider.core.models import check_protocol
from outrider.wire import channels, convert, services
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import CancelSession, SessionEvent, SessionRequest, VerifierInfo
from outrider.wire.v1.verifier_pb2 import VerifierGenerateResponse

_LOG = logging.getLogger(__name__)

INFO_TIMEOUT_S = 5.0
CANCEL_TIMEOUT_S = 2.0

Metadata = Sequence[tuple[str, str]]


class SessionStream:
    """One running session of a verifier. Whoever opened it must `close` it."""

    def __init__(
        self, link: VerifierLink, request: SessionRequest, timeout_s: float, metadata: Metadata
    ) -> None:
        self._link = link
        self.session_id = request.session_id
        self._call = link.client.Generate(
            convert.session_request_to_proto(request), timeout=timeout_s, metadata=tuple(metadata)
        )
        self._open = True
        link.running += 1

    async def next(self) -> SessionEvent | None:
        """The next event; None if the stream is over.

        Raises:
            OutriderError: what the verifier answered, or that it is away or broke the protocol.
        """
        try:
            response = await self._call.read()
            if not isinstance(response, VerifierGenerateResponse):
                return None  # aio.EOF
            return convert.session_event_from_proto(response.event)
        except aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except ProtocolError as error:
            raise InternalError(f"verifier {self._link.address} broke the protocol: {error}") from error

    async def cancel(self, cancel: CancelSession) -> bool:
        """Tell the verifier to end the session; False if it cannot be told or knows of none."""
        try:
            request = convert.cancel_to_proto(cancel)
            answer = await self._link.client.Cancel(request, timeout=CANCEL_TIMEOUT_S)
        except aio.AioRpcError as error:
            _LOG.warning("session %s: cancel failed: %s", self.session_id, error.code().name)
            return False
        return answer.found

    def close(self) -> None:
        """Give the session up, if it still runs: the verifier sees its stream cancelled. Idempotent."""
        if self._open:
            self._open = False
            self._link.running -= 1
            self._call.cancel()


class VerifierLink:
    """One verifier."""

    def __init__(self, address: str, moved: asyncio.Event) -> None:
        """`moved` is set whenever the verifier comes or goes."""
        self.address = address
        self.info: VerifierInfo | None = None  # None: away, or refused
        self._moved = moved
        self.running = 0  # sessions of this gateway there
        self.changed = asyncio.Event()  # set when a call found it away
        self._channel = channels.open_channel(address)
        self.client = services.verifier_client(self._channel)

    async def ask(self) -> VerifierInfo:
        """Ask who is there.

        Raises:
            OutriderError: nobody that we can work with.
        """
        try:
            answer = await self.client.GetInfo(convert.verifier_info_request(), timeout=INFO_TIMEOUT_S)
        except aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        info = convert.verifier_info_from_proto(answer)
        check_protocol(info.protocol_version, f"verifier {self.address}")
        return info

    def found(self, info: VerifierInfo | None) -> None:
        """Note who is there; None: nobody that we can work with."""
        if (self.info is None) != (info is None):
            self._moved.set()
        self.info = info

    def lost(self) -> None:
        """A call found the verifier away: no new sessions until it answers again."""
        self.found(None)
        self.changed.set()

    async def close(self) -> None:
        """Close the connection, and with it all its calls."""
        await self._channel.close()
