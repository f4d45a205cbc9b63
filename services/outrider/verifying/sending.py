"""A session's events, written to its client's call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from grpc import aio
from opentelemetry import trace

from outrider.core.errors import DeadlineExceededError
from outrider.telemetry import names
from outrider.verifying.attachment import Attachment
from outrider.verifying.leaving import Leaving
from outrider.wire.messages import SessionEvent, SessionFinished, SessionStarted

Context = aio.ServicerContext[Any, Any]

UNREAD_S = 60.0
"""How long a client that gave no deadline may leave an event unread; then its stream ends."""


async def send(
    attachment: Attachment,
    response: Callable[[SessionEvent], object],
    context: Context,
    span: trace.Span,
    leaving: Leaving,
) -> None:
    """Write a session's events; a client that goes away, or does not read, leaves the session behind.

    Not a generator: one is left suspended when its call is cancelled, and its `finally` waits.

    Raises:
        OutriderError: what ended the stream instead of the session's end.
    """
    try:
        async for event in _traced(attachment.events(), span):
            await _write(context, response(event))
    finally:
        leaving.detach(attachment)


async def _traced(events: AsyncIterator[SessionEvent], span: trace.Span) -> AsyncIterator[SessionEvent]:
    """The same events; what they tell of the session goes to its span."""
    async for event in events:
        if isinstance(event, SessionStarted):
            span.set_attribute(names.ATTR_EPOCH, event.epoch)
        elif isinstance(event, SessionFinished):
            span.set_attributes(
                {
                    names.ATTR_INPUT_TOKENS: event.usage.prompt_tokens,
                    names.ATTR_OUTPUT_TOKENS: event.usage.completion_tokens,
                    names.ATTR_CACHED_TOKENS: event.usage.cached_prompt_tokens,
                    names.ATTR_FINISH_REASONS: [event.reason.value],
                    names.ATTR_ROUNDS: event.speculation.rounds,
                    names.ATTR_DRAFTED: event.speculation.draft_tokens,
                    names.ATTR_ACCEPTED: event.speculation.accepted_tokens,
                }
            )
        yield event


async def _write(context: Context, response: object) -> None:
    """Raises DeadlineExceededError: the client gave no deadline and does not read."""
    try:
        async with asyncio.timeout(UNREAD_S if context.time_remaining() is None else None):
            await context.write(response)
    except TimeoutError:
        raise DeadlineExceededError(f"the client has read nothing for {UNREAD_S:g} s") from None
