"""The link to one drafter replica: greeting, one stream for all sessions, reconnecting."""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from grpc import aio

from outrider.core.backoff import Backoff
from outrider.core.bucket import Bucket
from outrider.core.errors import ModelMismatchError, OutriderError, ProtocolError, UnavailableError
from outrider.core.models import DrafterInfo, ModelInfo, check_pairing
from outrider.core.rounds import Proposal
from outrider.discovery import Instance
from outrider.verifying.mailbox import Drafted, Inward, LinkDown, LinkDraining, LinkLoad, LinkTook, LinkUp
from outrider.verifying.outgoing import Outgoing
from outrider.wire import convert
from outrider.wire.channels import open_channel
from outrider.wire.errors import from_rpc_error
from outrider.wire.messages import DraftCommand, DrafterLoad, Draining, Stale
from outrider.wire.protection import PLAIN, Protection
from outrider.wire.services import DrafterClient, drafter_client
from outrider.wire.v1 import drafter_pb2 as pb

_log = logging.getLogger(__name__)

_GREETING_TIMEOUT_S = 2.0
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
_ANSWERS_PER_COMMAND = 2
_MAX_EVENTS = 8192
"""Of one message. One with more is no answer to anything."""
_MAX_FAULTS = 5000
_FAULTS_PERIOD_S = 10.0
"""So many events that cannot be used, within so long, cost a drafter its link."""
_FLOOD_REST_S = 5.0
"""And for so long it is not called again."""
_SLICE = 256
"""Events taken in without letting others on the event loop in."""
_LOAD_INTERVAL_S = 0.1
"""A drafter tells its load far less often; what comes faster is left unread."""
_MAX_OWED = 4096
"""Most answers taken in beyond which a drafter only floods the engine thread's inbox."""
_generations = itertools.count(1)
"""Of all links, so that what is left of a link that was removed is never taken for its successor's."""


class FloodError(ProtocolError):
    """The drafter sends far more than it was asked for."""


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
    leaving: bool = False  # the replica is going on purpose

    @property
    def away(self) -> bool:
        """Whether it should draft, and cannot."""
        return self.status in (LinkStatus.DOWN, LinkStatus.REFUSED) and not self.leaving


def link_of(name: str, address: str) -> str:
    """The key of the link to a replica of drafter `name`."""
    return f"{name}@{address}"


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
        state: Callable[[LinkReport], None],
        protection: Protection = PLAIN,
    ) -> None:
        """Args:
        name: name of the drafter, as requests say it.
        address: "host:port".
        target: the model that its proposals are for.
        offered_features: features that the verifier can send.
        post: the engine thread's inbox.
        dropped: told drafter and reason of each event that cannot be read.
        state: told whenever the status changes.
        protection: of the connection.
        """
        self.key = link_of(name, address)
        self._name = name
        self._address = address
        self._target = target
        self._offered = offered_features
        self._post = post
        self._dropped = dropped
        self._state = state
        self._protection = protection
        self._faults = Bucket(_MAX_FAULTS, period_s=_FAULTS_PERIOD_S)  # also over several connections
        self._backoff = Backoff(_FIRST_BACKOFF_S, _MAX_BACKOFF_S)
        self._generation = 0
        self._outgoing: Outgoing | None = None
        self._clogged = asyncio.Event()
        self._owed = 0  # answers that may still come to the commands sent so far
        self._load_at = 0.0  # when it told its load last
        self._told_draining = False  # on the present stream
        self._instance_id = ""  # of the process that answered last
        self._listed: Instance | None = None
        self._retry = asyncio.Event()
        self._status = LinkStatus.CONNECTING
        self._detail = ""

    @property
    def report(self) -> LinkReport:
        """Where the link stands, and why."""
        leaving = self._listed is not None and self._listed.draining
        return LinkReport(self._name, self._address, self._status, self._detail, leaving)

    def listed(self, instance: Instance) -> None:
        """What the registry says of the replica now."""
        before, self._listed = self._listed, instance
        if before is not None and before.instance_id != instance.instance_id:
            self._backoff.reset()
            self._retry.set()  # it has just started
        same = instance.instance_id in ("", self._instance_id)
        if instance.draining and same and self._status is LinkStatus.READY:
            self._drain("the registry says so")

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        while True:
            try:
                async with open_channel(self._address, protection=self._protection) as channel:
                    client = drafter_client(channel)
                    await self._ride(client, await self._greet(client))
            except FloodError as error:
                self._set_status(LinkStatus.DOWN, str(error))
                await self._pause(_FLOOD_REST_S)
            except ModelMismatchError as error:
                self._set_status(LinkStatus.REFUSED, str(error))
            except OutriderError as error:
                self._set_status(LinkStatus.DOWN, str(error))
            except aio.AioRpcError as error:
                self._set_status(LinkStatus.DOWN, str(from_rpc_error(error)))
            await self._pause(self._backoff.next_s())

    def send(self, generation: int, commands: Sequence[DraftCommand]) -> None:
        """Send the commands of one step. They are dropped if their connection is gone already.

        Never blocks: a drafter that does not read loses the link, not the verifier its time.
        """
        if self._outgoing is None or generation != self._generation:
            return
        if not self._outgoing.put(commands):
            self._clogged.set()
        self._owed = min(self._owed + _ANSWERS_PER_COMMAND * len(commands), _MAX_OWED)

    async def _pause(self, seconds: float) -> None:
        """Until it is time to try again; at once if the replica has started anew."""
        try:
            async with asyncio.timeout(seconds):
                await self._retry.wait()
        except TimeoutError:
            pass
        self._retry.clear()

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
        self._instance_id = info.instance_id
        return info

    async def _ride(self, client: DrafterClient, info: DrafterInfo) -> None:
        """Use one stream until it ends, whoever ends it.

        Raises:
            UnavailableError: it ended, or the drafter does not read.
            FloodError: the drafter sends too much.
            AioRpcError: it broke.
        """
        generation = self._generation = next(_generations)
        self._clogged.clear()
        self._owed, self._told_draining = 0, False
        outgoing = self._outgoing = Outgoing(lambda size: self._post(LinkTook(self.key, generation, size)))
        call = client.Draft(outgoing)
        self._post(LinkUp(self.key, generation, info, self._name))
        self._set_status(LinkStatus.READY, f"{info.method} ({info.model.model_name or 'no model'})")
        reader = asyncio.create_task(self._read(call))
        watch = asyncio.create_task(self._clogged.wait())
        try:
            await asyncio.wait((reader, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._outgoing = None
            self._post(LinkDown(self.key, generation))
            for task in (reader, watch):
                task.cancel()
            call.cancel()
            results = await asyncio.gather(reader, watch, return_exceptions=True)
        if isinstance(results[0], aio.AioRpcError | FloodError):
            raise results[0]
        if self._clogged.is_set():
            raise UnavailableError("the drafter does not read: too many messages wait for it")
        raise UnavailableError("the drafter ended the stream")

    async def _read(self, call: aio.StreamStreamCall[pb.DraftRequest, pb.DraftResponse]) -> None:
        async for response in call:
            self._backoff.reset()
            if len(response.events) > _MAX_EVENTS:
                self._dropped(self._name, "flood")
                raise FloodError(f"the drafter sent {len(response.events)} events in one message")
            for index, message in enumerate(response.events, 1):
                self._take(message)
                if not index % _SLICE:
                    await asyncio.sleep(0)

    def _take(self, message: pb.DraftEvent) -> None:
        """Raises FloodError: it is one too many of those that cannot be used."""
        try:
            event = convert.event_from_proto(message)
        except ProtocolError as error:
            _log.debug("drafter %s sent an event that cannot be read: %s", self._name, error)
            self._fault("malformed")
            return
        if isinstance(event, Proposal | Stale):
            if not self._owed:
                self._fault("flood")
                return
            self._owed -= 1
            self._post(Drafted(self.key, self._generation, event))
        elif isinstance(event, DrafterLoad):
            self._take_load(event)
        elif isinstance(event, Draining):
            if self._told_draining:
                self._fault("flood")
                return
            self._told_draining = True
            self._drain(f"it stops in {event.grace_ms / 1000:g} s at most")

    def _take_load(self, load: DrafterLoad) -> None:
        now = monotonic()
        if now < self._load_at + _LOAD_INTERVAL_S:
            self._fault("flood")
            return
        self._load_at = now
        self._post(LinkLoad(self.key, self._generation, load))

    def _fault(self, reason: str) -> None:
        self._dropped(self._name, reason)
        if not self._faults.try_take(1):
            raise FloodError(
                f"the drafter sent over {_MAX_FAULTS} events in {_FAULTS_PERIOD_S:g} s that cannot be used"
            )

    def _drain(self, detail: str) -> None:
        self._set_status(LinkStatus.DRAINING, detail)
        self._post(LinkDraining(self.key, self._generation))

    def _set_status(self, status: LinkStatus, detail: str) -> None:
        changed = (status, detail) != (self._status, self._detail)
        self._status, self._detail = status, detail
        if changed:
            level = {LinkStatus.REFUSED: logging.ERROR, LinkStatus.DOWN: logging.WARNING}.get(
                status, logging.INFO
            )
            _log.log(level, "drafter %s at %s is %s: %s", self._name, self._address, status.value, detail)
            self._state(self.report)
