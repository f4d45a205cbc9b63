"""Clients' streams of the sessions that live here. Event loop only."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace

from outrider.core.errors import (
    InvalidRequestError,
    OutriderError,
    SessionExistsError,
    SessionNotFoundError,
    StaleEpochError,
)
from outrider.core.params import TokenLogprobs
from outrider.core.sessions import SessionRecord
from outrider.verifying.mailbox import StreamItem
from outrider.wire.messages import (
    PromptLogprobs,
    SessionEvent,
    SessionFinished,
    SessionStarted,
    SessionTokens,
)

MAX_FINISHED = 1024
"""Finished sessions that are remembered, for a Cancel that comes late."""


class Attachment:
    """One client's view of a session: what it missed, then what comes."""

    def __init__(self, record: SessionRecord, first: Iterable[StreamItem]) -> None:
        self.session_id = record.session_id
        self._started = SessionStarted(record.sampling.seed, record.epoch)
        # Unbounded, but a session never holds more than max_tokens tokens.
        self._items: asyncio.Queue[StreamItem] = asyncio.Queue()
        for item in first:
            self._items.put_nowait(item)

    def push(self, item: StreamItem) -> None:
        """One more item for the client."""
        self._items.put_nowait(item)

    async def events(self) -> AsyncIterator[SessionEvent]:
        """The stream: started, tokens, finished.

        Raises:
            OutriderError: what ended the session, or the attachment, instead.
        """
        yield self._started
        while True:
            item = await self._items.get()
            if isinstance(item, OutriderError):
                raise item
            yield item
            if isinstance(item, SessionFinished):
                return


@dataclass(slots=True)
class _Live:
    record: SessionRecord
    tokens: list[int]
    attachment: Attachment
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the tokens generated here, if told
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Finished:
    """A session that finished here a while ago."""

    epoch: int
    tokens: int  # generated tokens that count


class StreamTable:
    """The sessions that live here, each with at most one attached client."""

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}
        self._finished: OrderedDict[str, Finished] = OrderedDict()  # oldest first
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._live

    def add(self, record: SessionRecord, *, from_token: int = 0) -> Attachment:
        """A session begins to live here, with its first client.

        Raises:
            SessionExistsError: it lives here already.
            InvalidRequestError: `from_token` is past its end.
        """
        if record.session_id in self._live:
            raise SessionExistsError(f"session {record.session_id} runs here already")
        attachment = Attachment(record, replay(record.tokens, from_token))
        self._live[record.session_id] = _Live(record, list(record.tokens), attachment)
        self._finished.pop(record.session_id, None)
        self._empty.clear()
        return attachment

    def attach(self, session_id: str, from_token: int) -> Attachment:
        """A newer client takes the place of the older one, whose stream ends.

        It gets all log-probabilities again that were told here; those of the prompt if it has no token yet.

        Raises:
            SessionNotFoundError: it does not live here.
            InvalidRequestError: `from_token` is past its end.
        """
        live = self._live.get(session_id)
        if live is None:
            raise SessionNotFoundError(f"session {session_id} does not run here")
        missed = replay(live.tokens, from_token, live.logprobs)
        attachment = Attachment(live.record, [*([] if from_token else live.prompt_logprobs), *missed])
        live.attachment.push(StaleEpochError("another client has attached to this session"))
        live.attachment = attachment
        return attachment

    def is_current(self, attachment: Attachment) -> bool:
        """Whether the session lives and this is its client."""
        live = self._live.get(attachment.session_id)
        return live is not None and live.attachment is attachment

    def snapshot(self, session_id: str) -> SessionRecord | None:
        """The record of a session that lives here, with all its tokens so far."""
        live = self._live.get(session_id)
        return replace(live.record, tokens=tuple(live.tokens)) if live else None

    def finished(self, session_id: str) -> Finished | None:
        """How a session ended that finished here lately."""
        return self._finished.get(session_id)

    def deliver(self, items: Iterable[tuple[str, StreamItem]]) -> None:
        """What a step brought, to the clients."""
        for session_id, item in items:
            live = self._live.get(session_id)
            if live is None:
                continue
            live.attachment.push(item)
            match item:
                case SessionTokens():
                    live.tokens.extend(item.token_ids)
                    live.logprobs.extend(item.logprobs)
                case PromptLogprobs():
                    live.prompt_logprobs.append(item)
                case SessionFinished():
                    self._remove(session_id)
                    self._remember(session_id, Finished(live.record.epoch, item.usage.completion_tokens))
                case OutriderError():
                    self._remove(session_id)

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

    def _remove(self, session_id: str) -> None:
        live = self._live.pop(session_id, None)
        if live is not None:
            live.ended.set()
        if not self._live:
            self._empty.set()


def replay(
    tokens: Iterable[int], from_token: int, logprobs: Sequence[TokenLogprobs] = ()
) -> list[SessionTokens]:
    """The tokens from `from_token` on, as one item; none if there are none.

    `logprobs` tell of the last tokens. Those before, which came from the store, are an item of their own
    without any.

    Raises:
        InvalidRequestError: `from_token` is past the end.
    """
    held = list(tokens)
    if from_token > len(held):
        raise InvalidRequestError(
            f"from_token is {from_token}, the session has {len(held)} tokens", field="from_token"
        )
    bare = len(held) - len(logprobs)
    told = max(from_token, bare)
    items = [
        SessionTokens(from_token, tuple(held[from_token:bare])),
        SessionTokens(told, tuple(held[told:]), logprobs=tuple(logprobs[told - bare :])),
    ]
    return [item for item in items if item.token_ids]
