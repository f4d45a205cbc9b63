"""One client's stream of a session: what it missed, then what comes. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

from outrider.core.errors import InvalidRequestError, OutriderError
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

_ITEM_BYTES, _TOKEN_BYTES, _LOGPROBS_BYTES, _TOP_BYTES = 200, 40, 150, 120
"""Memory, about: of an item, of a token in it, of its log-probabilities, of an alternative to it."""


class Attachment:
    """One client's view of a session, from a token on.

    That token may lie ahead: what comes before it is generated, and not told.
    """

    def __init__(
        self, record: SessionRecord, first: Iterable[StreamItem] = (), *, from_token: int = 0, held: int = 0
    ) -> None:
        """Args:
        record: of the session.
        first: what the client is told at once.
        from_token: the first generated token to tell.
        held: generated tokens that there are, `first` among them.
        """
        self.session_id = record.session_id
        self._started = SessionStarted(
            record.sampling.seed, record.epoch, record.presentation, len(record.prompt)
        )
        self._from = from_token
        self._reached = held
        self._closed = False
        # With the bytes that count as unread: what is told at once is what the session holds anyway.
        self._items: asyncio.Queue[tuple[StreamItem, int]] = asyncio.Queue()
        self.unread_bytes = 0
        for item in first:
            self._items.put_nowait((item, 0))

    def push(self, item: StreamItem) -> None:
        """One more item for the client. Whoever calls keeps an eye on `unread_bytes`."""
        if not self._closed:
            size = _bytes_of(item)
            self.unread_bytes += size
            self._items.put_nowait((item, size))

    def close(self) -> None:
        """Nobody reads it any more: keep nothing."""
        self._closed = True
        self.unread_bytes = 0
        while not self._items.empty():
            self._items.get_nowait()

    @property
    def is_closed(self) -> bool:
        """Whether its client is gone."""
        return self._closed

    async def events(self) -> AsyncIterator[SessionEvent]:
        """The stream: started, tokens, finished.

        Raises:
            OutriderError: what ended the session, or the attachment, instead.
            InvalidRequestError: the session ended before the token that was asked for.
        """
        yield self._started
        while True:
            item, size = await self._items.get()
            self.unread_bytes -= size
            if isinstance(item, OutriderError):
                raise item
            if isinstance(item, SessionFinished):
                if self._reached < self._from:
                    raise past_the_end(self._from, self._reached)
                yield item
                return
            told = self._wanted(item) if isinstance(item, SessionTokens) else item
            if told is not None:
                yield told

    def _wanted(self, item: SessionTokens) -> SessionTokens | None:
        """What of some tokens is asked for."""
        self._reached = max(self._reached, item.first_token + len(item.token_ids))
        skipped = self._from - item.first_token
        if skipped <= 0:
            return item
        if skipped >= len(item.token_ids):
            return None
        return replace(
            item,
            first_token=self._from,
            token_ids=item.token_ids[skipped:],
            accepted=max(0, item.accepted - skipped),
            logprobs=item.logprobs[skipped:],
        )


def replay(
    tokens: Sequence[int], from_token: int, logprobs: Sequence[TokenLogprobs] = ()
) -> list[SessionTokens]:
    """The tokens from `from_token` on, as one item; none if there are none.

    `logprobs`, if there are any, tell of the last tokens, from `from_token` or an earlier one on.
    """
    if from_token >= len(tokens):
        return []
    told = tuple(logprobs[len(logprobs) - len(tokens) + from_token :]) if logprobs else ()
    return [SessionTokens(from_token, tuple(tokens[from_token:]), logprobs=told)]


def _bytes_of(item: StreamItem) -> int:
    """The memory that an item takes, about."""
    if isinstance(item, SessionTokens):
        size = _ITEM_BYTES + _TOKEN_BYTES * len(item.token_ids)
        return size + sum(map(_bytes_of_logprobs, item.logprobs))
    if isinstance(item, PromptLogprobs):
        return _ITEM_BYTES + sum(map(_bytes_of_logprobs, item.entries))
    return _ITEM_BYTES


def _bytes_of_logprobs(entry: TokenLogprobs) -> int:
    return _LOGPROBS_BYTES + _TOP_BYTES * len(entry.top)


def past_the_end(from_token: int, tokens: int) -> InvalidRequestError:
    """Somebody asks for what will never be."""
    return InvalidRequestError(
        f"from_token is {from_token}, the session has {tokens} tokens", field="from_token"
    )
