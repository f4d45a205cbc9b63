"""The link to one drafter replica: greeting, one stream for all sessions, reconnecting."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpc import aio

from outrider.core.errors import ModelMismatchError, OutriderError, ProtocolError, UnavailableError
from outrider.core.models import DrafterInfo, ModelInfo, check_pairing
from outrider.core.rounds import Proposal
from outrider.verifying.backoff import Backoff
from outrider.verifying.mailbox import Drafted, Inward, LinkDown, LinkDraining, LinkTook, LinkUp
from outrider.verifying.outgoing import Outgoing
from outrider.wire import convert
from outrider.wire.channels import open_channel
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import DraftCommand, Draining, Stale
from outrider.wire.services import DrafterClient, drafter_client
from outrider.wire.v1 import drafter_pb2 as pb

_log = logging.getLogger(__name__)

_GREETING_TIMEOUT_S = 2.0
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
_ANSWERS_PER_COMMAND = 2
_UNASKED = 1  # Draining, once
_MAX_OWED = 4096
"""Most answers taken in beyond which a drafter only floods the engine thread's inbox."""


class LinkStatus(enum.Enum):
    """Where a link stands."""

    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"  # what it holds goes on, until it stops
    REFUSED = "refused"  # the drafter does not fit the target
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class LinkReport:
    """A link, for people."""

    name: str
    address: str
    status: LinkStatus
    detail: str = ""


class DrafterLink:
    """One drafter replica, as the event loop sees it. What it learns goes to `post`."""

    def __init__(
        self,
        name: str,
        address: str,
        target: ModelInfo,
        *,
        offered_features: frozenset[str],
        post: Callable[[Inward], None],
        dropped: Callable[[str, str], None],
        state: Callable[[str, str], None],
    ) -> None:
        """Args:
        name: name of the drafter, as requests say it.
        address: "host:port".
        target: the model that its proposals are for.
        offered_features: features that the verifier can send.
        post: the engine thread's inbox.
        dropped: told drafter and reason of each event that cannot be read.
        state: told drafter and status whenever the status changes.
        """
        self._name = name
        self._address = address
        self._target = target
        self._offered = offered_features
        self._post = post
        self._dropped = dropped
        self._state = state
        self._backoff = Backoff(_FIRST_BACKOFF_S, _MAX_BACKOFF_S)
        self._generation = 0
        self._outgoing: Outgoing | None = None
        self._clogged = asyncio.Event()
        self._owed = 0  # events that may still come: answers to the commands sent so far, and Draining
        self._status = LinkStatus.CONNECTING
        self._detail = ""

    @property
    def report(self) -> LinkReport:
        """Where the link stands, and why."""
        return LinkReport(self._name, self._address, self._status, self._detail)

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        while True:
            try:
                async with open_channel(self._address) as channel:
                    client = drafter_client(channel)
                    await self._ride(client, await self._greet(client))
            except ModelMismatchError as error:
                self._set_status(LinkStatus.REFUSED, str(error))
            except OutriderError as error:
                self._set_status(LinkStatus.DOWN, str(error))
            except aio.AioRpcError as error:
                self._set_status(LinkStatus.DOWN, str(from_rpc_error(error)))
            await asyncio.sleep(self._backoff.next_s())

    def send(self, generation: int, commands: Sequence[DraftCommand]) -> None:
        """Send the commands of one step. They are dropped if their connection is gone already.

        Never blocks: a drafter that does not read loses the link, not the verifier its time.
        """
        if self._outgoing is None or generation != self._generation:
            return
        if not self._outgoing.put(commands):
            self._clogged.set()
        self._owed = min(self._owed + _ANSWERS_PER_COMMAND * len(commands), _MAX_OWED)

    async def _greet(self, client: DrafterClient) -> DrafterInfo:
        """Ask who is there.

        Raises:
            ModelMismatchError: the drafter does not fit the target.
            ProtocolError: the answer cannot be read.
            AioRpcError: nobody answers.
        """
        answer = await client.GetInfo(convert.drafter_info_request(), timeout=_GREETING_TIMEOUT_S)
        info = convert.drafter_info_from_proto(answer)
        check_pairing(self._target, info, self._offered)
        return info

    async def _ride(self, client: DrafterClient, info: DrafterInfo) -> None:
        """Use one stream until it ends, whoever ends it.

        Raises:
            UnavailableError: it ended, or the drafter does not read.
            AioRpcError: it broke.
        """
        self._generation += 1
        self._clogged.clear()
        self._owed = _UNASKED
        generation = self._generation
        outgoing = self._outgoing = Outgoing(lambda size: self._post(LinkTook(self._name, generation, size)))
        call = client.Draft(outgoing)
        self._post(LinkUp(self._name, self._generation, info))
        self._set_status(LinkStatus.READY, f"{info.method} ({info.model.model_name or 'no model'})")
        reader = asyncio.create_task(self._read(call))
        watch = asyncio.create_task(self._clogged.wait())
        try:
            await asyncio.wait((reader, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._outgoing = None
            self._post(LinkDown(self._name, self._generation))
            for task in (reader, watch):
                task.cancel()
            call.cancel()
            results = await asyncio.gather(reader, watch, return_exceptions=True)
        if isinstance(results[0], aio.AioRpcError):
            raise results[0]
        if self._clogged.is_set():
            raise UnavailableError("the drafter does not read: too many messages wait for it")
        raise UnavailableError("the drafter ended the stream")

    async def _read(self, call: aio.StreamStreamCall[pb.DraftRequest, pb.DraftResponse]) -> None:
        async for response in call:
            self._backoff.reset()
            for message in response.events:
                self._take(message)

    def _take(self, message: pb.DraftEvent) -> None:
        try:
            event = convert.event_from_proto(message)
        except ProtocolError as error:
            _log.debug("drafter %s sent an event that cannot be read: %s", self._name, error)
            self._dropped(self._name, "malformed")
            return
        if not self._owed:
            self._dropped(self._name, "flood")
            return
        self._owed -= 1
        if isinstance(event, Proposal | Stale):
            self._post(Drafted(self._name, self._generation, event))
        elif isinstance(event, Draining):
            self._set_status(LinkStatus.DRAINING, f"it stops in {event.grace_ms / 1000:g} s at most")
            self._post(LinkDraining(self._name, self._generation))

    def _set_status(self, status: LinkStatus, detail: str) -> None:
        if (status, detail) != (self._status, self._detail):
            level = {LinkStatus.REFUSED: logging.ERROR, LinkStatus.DOWN: logging.WARNING}.get(
                status, logging.INFO
            )
            self._state(self._name, status.value)
            _log.log(level, "drafter %s at %s is %s: %s", self._name, self._address, status.value, detail)
        self._status, self._detail = status, detail
