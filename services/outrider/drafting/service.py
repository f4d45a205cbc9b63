"""The gRPC service `outrider.v1.Drafter`: streams to commands, answers to streams. Never touches torch."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable

from grpc import aio

from outrider.core.bucket import Bucket
from outrider.core.errors import ModelMismatchError, ProtocolError
from outrider.core.models import DrafterInfo, check_protocol
from outrider.drafting.streams import DraftStream
from outrider.drafting.worker import Arrival, Malformed, StreamEnd, Turn
from outrider.wire import errors, services
from outrider.wire.convert.drafter import command_from_proto, drafter_info_to_proto, event_to_proto
from outrider.wire.messages import AdvanceDraft, DraftCommand, DrafterLoad, Draining, OpenDraft
from outrider.wire.v1 import drafter_pb2 as pb

log = logging.getLogger(__name__)

MAX_FAULTS = 5000
FAULTS_PERIOD_S = 10.0
"""So many commands that cannot be used, within so long, cost a verifier its stream."""
SLICE = 256
"""Commands converted without letting other streams in."""
WEIGHT_BYTES = 2**14
"""Bytes of features that count as much as a command."""
LOAD_INTERVAL_S = 0.5
"""Shortest time between two Load events of a stream."""


class DrafterService(services.DrafterService):
    """Used in the event loop only."""

    def __init__(
        self,
        info: DrafterInfo,
        *,
        put: Callable[[Arrival | StreamEnd], None],
        observe: Callable[[Turn], None],
    ) -> None:
        """`put` hands commands to the worker; `observe` is told of each turn (metrics, spans)."""
        self._info = info
        self._put = put
        self._observe = observe
        self._ids = itertools.count(1)
        self._streams: dict[int, DraftStream] = {}
        self._load = DrafterLoad(0, 0, 0.0)
        self._turned = asyncio.Event()
        self._draining: Draining | None = None

    async def GetInfo(
        self,
        request: pb.DrafterGetInfoRequest,
        context: aio.ServicerContext[pb.DrafterGetInfoRequest, pb.DrafterGetInfoResponse],
    ) -> pb.DrafterGetInfoResponse:
        """Who is here; FAILED_PRECONDITION for another version of the protocol."""
        try:
            check_protocol(request.protocol_version, "the verifier")
        except ModelMismatchError as error:
            await errors.abort(context, error)
        return drafter_info_to_proto(self._info)

    async def Draft(
        self,
        request_iterator: AsyncIterable[pb.DraftRequest],
        context: aio.ServicerContext[pb.DraftRequest, pb.DraftResponse],
    ) -> AsyncIterator[pb.DraftResponse]:
        """One verifier's stream. Its end, however it comes, frees its sessions."""
        stream = self._connect()
        reader = asyncio.create_task(self._read(stream, request_iterator))
        reader.add_done_callback(lambda task: self._read_all(stream, task))
        # The generator may be left between two of its steps, so its `finally` alone would not do.
        context.add_done_callback(lambda _: self._disconnect(stream, reader))  # type: ignore[arg-type] # stubs
        try:
            while events := await stream.take():
                yield pb.DraftResponse(events=events)
        finally:
            self._disconnect(stream, reader)

    def on_turn(self, turn: Turn) -> None:
        """What the worker did: to be called in the event loop."""
        outgoing: dict[int, list[pb.DraftEvent]] = {}
        for answer in turn.happened.answers:
            outgoing.setdefault(answer.stream, []).append(event_to_proto(answer.event))
        for stream_id, events in outgoing.items():
            if (stream := self._streams.get(stream_id)) is not None:
                stream.send(events)
        for stream_id, weight in turn.applied.items():
            if (stream := self._streams.get(stream_id)) is not None:
                stream.applied(weight)
        self._load = turn.load
        self._turned.set()
        # After the streams' tasks, which `send` has woken: a verifier waits for what they write.
        asyncio.get_running_loop().call_soon(self._observe, turn)

    @property
    def load(self) -> DrafterLoad:
        """How busy the drafter was after its last turn."""
        return self._load

    @property
    def max_sessions(self) -> int:
        """Sessions that fit."""
        return self._info.max_sessions

    async def tell_load(self) -> None:
        """Tell all streams how busy the drafter is, now and then, when it changed. Runs until cancelled."""
        told: dict[int, DrafterLoad] = {}
        while True:
            load = self._load
            event = event_to_proto(load)
            for stream in self._streams.values():
                if told.get(stream.id) != load:
                    stream.send((event,))
            told = dict.fromkeys(self._streams, load)
            await asyncio.sleep(LOAD_INTERVAL_S)

    async def drain(self, grace_s: float) -> None:
        """Tell all streams to move on, answer what is owed (`grace_s` at most), end the streams."""
        self._draining = Draining(round(grace_s * 1000))
        for stream in self._streams.values():
            stream.send((event_to_proto(self._draining),))
        try:
            async with asyncio.timeout(grace_s):
                while self._load.queued or any(stream.unapplied for stream in self._streams.values()):
                    self._turned.clear()
                    await self._turned.wait()
        except TimeoutError:
            log.info("%d proposals were still owed after %.1f s", self._load.queued, grace_s)
        for stream in self._streams.values():
            stream.end()

    def _connect(self) -> DraftStream:
        stream = DraftStream(next(self._ids))
        self._streams[stream.id] = stream
        if self._draining is not None:
            stream.send((event_to_proto(self._draining),))
            stream.end()
        return stream

    def _disconnect(self, stream: DraftStream, reader: asyncio.Task[None]) -> None:
        # Commands that came after the stream's end would leave sessions that nobody frees.
        reader.cancel()
        if self._streams.pop(stream.id, None) is not None:
            self._put(StreamEnd(stream.id))

    def _read_all(self, stream: DraftStream, reader: asyncio.Task[None]) -> None:
        """No more commands will come, for whatever reason: end the stream."""
        stream.end()
        if not reader.cancelled() and (error := reader.exception()) is not None:
            log.warning("stream %d cannot be read any more: %s", stream.id, error)

    async def _read(self, stream: DraftStream, requests: AsyncIterable[pb.DraftRequest]) -> None:
        """Raises ProtocolError: too much of what comes cannot be used."""
        faults = Bucket(MAX_FAULTS, period_s=FAULTS_PERIOD_S)
        async for request in requests:
            at_ns = time.perf_counter_ns()
            for start in range(0, len(request.commands), SLICE):
                commands = [self._command(message) for message in request.commands[start : start + SLICE]]
                weight = sum(map(_weight, commands))
                stream.submitted(weight)
                self._put(Arrival(stream.id, commands, at_ns, weight))
                if not faults.try_take(sum(isinstance(command, Malformed) for command in commands)):
                    raise ProtocolError(f"over {MAX_FAULTS} malformed commands in {FAULTS_PERIOD_S:g} s")
                if start:
                    await asyncio.sleep(0)
            await stream.room()

    def _command(self, message: pb.DraftCommand) -> DraftCommand | Malformed:
        try:
            return command_from_proto(message, vocab_size=self._info.model.vocab_size)
        except ProtocolError as error:
            return Malformed(message.session_id, message.epoch, str(error))


def _weight(command: DraftCommand | Malformed) -> int:
    """What a command counts among those not taken in: 1, and more with features."""
    if isinstance(command, OpenDraft | AdvanceDraft):
        return 1 + sum(len(block.data) for block in command.features) // WEIGHT_BYTES
    return 1
