"""Sessions that live here, and what their clients are told. Event loop only."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from outrider.core.errors import (
    OutriderError,
    SessionExistsError,
    SessionNotFoundError,
    StaleEpochError,
    StoreUnavailableError,
    SupersededError,
)
from outrider.core.params import Acceptance, LogprobParams, TokenLogprobs
from outrider.core.sessions import SessionRecord
from outrider.verifying.attachment import Attachment, replay
from outrider.verifying.gate import Gate
from outrider.verifying.mailbox import StreamItem
from outrider.wire.messages import PromptLogprobs, SessionFinished, SessionTokens

MAX_FINISHED = 1024
"""Finished sessions that are remembered, for a Cancel that comes late."""
WITHHELD_S = 30.0
"""How long tokens that must be stored first may wait for the store; then the client's stream ends."""


@dataclass(slots=True)
class _Live:
    record: SessionRecord  # as it began to live here
    first: int  # generated token that its first client was told from
    tokens: list[int]  # generated; those of the record whose log-probabilities are still to come are missing
    attachment: Attachment
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(
        default_factory=list
    )  # of the last tokens, from `first` on, if told
    told: int = 0  # of the tokens, what clients may have seen: all, but for those behind the gate
    gate: Gate | None = None
    timer: asyncio.TimerHandle | None = None  # while something waits behind the gate
    leaving: bool = False  # the engine thread has let go of it: its last tokens are being stored
    fenced: bool = False  # somebody else owns it
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def generated(self) -> tuple[int, ...]:
        """All generated tokens that there are."""
        return max(tuple(self.tokens), self.record.tokens, key=len)


@dataclass(slots=True)
class Finished:
    """A session that finished here a while ago, or was parked."""

    epoch: int
    tokens: int  # generated tokens that count
    parked: bool = False


class StreamTable:
    """The sessions that live here, each with at most one attached client."""

    def __init__(
        self,
        ended: Callable[[str], None] = lambda session_id: None,
        *,
        max_unread_bytes: int = 2**22,
        unread: Callable[[str], None] = lambda session_id: None,
    ) -> None:
        """Args:
        ended: told of each session that does not live here any more.
        max_unread_bytes: memory of what one client has not read.
        unread: told of a session whose client has left more unread, until it leaves.
        """
        self._ended = ended
        self._max_unread_bytes = max_unread_bytes
        self._too_much_unread = unread
        self._live: dict[str, _Live] = {}
        self._finished: OrderedDict[str, Finished] = OrderedDict()  # oldest first
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._live

    def add(self, record: SessionRecord, *, from_token: int = 0, stored: int | None = None) -> Attachment:
        """A session begins to live here, with its first client.

        Where log-probabilities are asked for, tokens that it has already come as items again, with these.

        Args:
            record: the session with all its tokens.
            from_token: first generated token to tell.
            stored: how many of its tokens the store has; None: all.

        Raises:
            SessionExistsError: it lives here already.
        """
        if record.session_id in self._live:
            raise SessionExistsError(f"session {record.session_id} runs here already")
        tokens = record.tokens if record.logprobs.top is None else record.tokens[:from_token]
        attachment = Attachment(
            record, replay(tokens, from_token), from_token=from_token, held=len(record.tokens)
        )
        gate = None
        if record.speculation.acceptance is not Acceptance.COUPLED:
            gate = Gate(len(record.tokens) if stored is None else stored)
        self._live[record.session_id] = _Live(
            record, from_token, list(tokens), attachment, told=len(tokens), gate=gate
        )
        self._finished.pop(record.session_id, None)
        self._empty.clear()
        return attachment

    def serves(self, session_id: str, from_token: int, known: int) -> bool:
        """Whether a client can attach that wants the tokens from `from_token` on and has `known` ones.

        It cannot if it has more than there are here, or wants log-probabilities that were not told here, or
        tokens that cannot be generated again.
        """
        live = self._live[session_id]
        held = len(live.generated)
        if live.leaving or known > held or (live.gate is not None and from_token > held):
            return False
        return live.record.logprobs == LogprobParams() or from_token >= live.first

    def attach(self, session_id: str, from_token: int) -> Attachment:
        """A newer client takes the place of the older one, whose stream ends. It must be one that is served.

        It gets all log-probabilities again that were told here; those of the prompt if it has no token yet.

        Raises:
            SessionNotFoundError: it does not live here.
            StoreUnavailableError: it is about to end, because the store is away.
        """
        live = self._live.get(session_id)
        if live is None:
            raise SessionNotFoundError(f"session {session_id} does not run here")
        if live.gate is not None and live.gate.closed:
            raise _not_stored()
        bare = len(live.tokens) - len(live.logprobs)
        missed = replay(live.tokens[: live.told], from_token, live.logprobs[: max(0, live.told - bare)])
        attachment = Attachment(
            live.record,
            [*([] if from_token else live.prompt_logprobs), *missed],
            from_token=from_token,
            held=live.told,
        )
        live.attachment.push(SupersededError("another client has attached to this session"))
        live.attachment = attachment
        return attachment

    def is_current(self, attachment: Attachment) -> bool:
        """Whether the session lives and this is its client."""
        live = self._live.get(attachment.session_id)
        return live is not None and live.attachment is attachment

    def snapshot(self, session_id: str) -> SessionRecord | None:
        """The record of a session that lives here, with all its tokens so far."""
        live = self._live.get(session_id)
        return replace(live.record, tokens=live.generated) if live else None

    def finished(self, session_id: str) -> Finished | None:
        """How a session ended that finished here lately, or was parked."""
        return self._finished.get(session_id)

    def deliver(self, items: Iterable[tuple[str, StreamItem]]) -> None:
        """What a step brought, to the clients; what has to be stored first, to the gate."""
        for session_id, item in items:
            live = self._live.get(session_id)
            if live is None:
                continue
            if isinstance(item, SessionTokens):
                live.tokens.extend(item.token_ids)
                live.logprobs.extend(item.logprobs)
            elif isinstance(item, PromptLogprobs):
                live.prompt_logprobs.append(item)
            if live.gate is None or _overtakes(item, live.told, live.gate):
                self._tell(live, item)
            else:
                live.gate.put(item, len(live.tokens))
                self._pass(live, live.gate)

    def stored(self, session_id: str, tokens: int) -> None:
        """The store has so many generated tokens of a session."""
        live = self._live.get(session_id)
        if live is not None and live.gate is not None:
            live.gate.stored = max(live.gate.stored, tokens)
            self._pass(live, live.gate)

    def fenced(self, session_id: str, error: StaleEpochError) -> bool:
        """Somebody else owns a session: what waits to be stored never will be. False: it was known.

        The engine thread is told too, but knows nothing of a session whose end waits here.
        """
        live = self._live.get(session_id)
        if live is None or live.fenced:
            return False
        live.fenced = True
        if live.gate is not None or live.leaving:
            self._tell(live, error)
        return True

    def unread(self) -> list[str]:
        """Sessions whose client is gone."""
        return [session_id for session_id in self._live if self.is_unread(session_id)]

    def is_unread(self, session_id: str) -> bool:
        """Whether the client of a session is gone."""
        live = self._live.get(session_id)
        return live is not None and live.attachment.is_closed

    def leave(self, session_id: str) -> None:
        """The engine thread has let go of a session that is not over: nobody can attach to it."""
        live = self._live.get(session_id)
        if live is not None:
            live.leaving = True

    def part(self, session_id: str, error: OutriderError) -> None:
        """Such a session does not live here any more; its stream ends with `error`."""
        live = self._live.get(session_id)
        if live is not None:
            self._tell(live, error)
            self._remember(session_id, Finished(live.record.epoch, len(live.generated), parked=True))

    def _pass(self, live: _Live, gate: Gate) -> None:
        """Let through the gate what may; what is left has its time."""
        progress = False
        for item in gate.passing():
            self._tell(live, item)
            progress = True
        if live.timer is not None and (progress or not gate):
            live.timer.cancel()
            live.timer = None
        if gate and live.timer is None:
            live.timer = asyncio.get_running_loop().call_later(WITHHELD_S, self._overdue, live, gate)

    def _overdue(self, live: _Live, gate: Gate) -> None:
        """End the client's stream; nobody reads the session then, if it has not ended by itself."""
        if gate.close():
            self._tell(live, _not_stored())
        else:
            live.attachment.push(_not_stored())

    def _tell(self, live: _Live, item: StreamItem) -> None:
        live.attachment.push(item)
        if live.attachment.unread_bytes > self._max_unread_bytes and not live.leaving:
            self._too_much_unread(live.record.session_id)
        match item:
            case SessionTokens():
                live.told += len(item.token_ids)
            case SessionFinished():
                self._remove(live)
                self._remember(
                    live.record.session_id, Finished(live.record.epoch, item.usage.completion_tokens)
                )
            case OutriderError():
                self._remove(live)

    def fail_all(self, error: OutriderError) -> None:
        """End every stream with `error`."""
        self.deliver([(session_id, error) for session_id in self._live])

    async def wait_ended(self, session_id: str) -> None:
        """Until the session does not live here any more."""
        live = self._live.get(session_id)
        if live is not None:
            await live.ended.wait()

    async def wait_empty(self) -> None:
        """Until no session lives here."""
        await self._empty.wait()

    def _remember(self, session_id: str, finished: Finished) -> None:
        self._finished[session_id] = finished
        while len(self._finished) > MAX_FINISHED:
            self._finished.popitem(last=False)

    def _remove(self, live: _Live) -> None:
        del self._live[live.record.session_id]
        live.ended.set()
        self._ended(live.record.session_id)
        if live.timer is not None:
            live.timer.cancel()
        if not self._live:
            self._empty.set()


def _overtakes(item: StreamItem, told: int, gate: Gate) -> bool:
    """Whether an item ends the session without what waits: an error, or an end at what was told already."""
    if isinstance(item, SessionFinished):
        return gate.closed or item.usage.completion_tokens <= told
    return isinstance(item, OutriderError)


def _not_stored() -> StoreUnavailableError:
    return StoreUnavailableError(
        f"the session store is away, and tokens that have to be stored before they are sent have waited "
        f"{WITHHELD_S:g} s for it"
    )
