"""One generation from admission to finish: what the HTTP and the gRPC API share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

from outrider.core.errors import InternalError, OutriderError, UnavailableError
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.gateway.delivery import Delivery
from outrider.gateway.observation import Observation
from outrider.gateway.verifier_link import SessionStream
from outrider.wire.messages import (
    CancelSession,
    GenerationDelta,
    GenerationFinished,
    GenerationStarted,
    PromptLogprobs,
    SessionEvent,
    SessionFinished,
    SessionTokens,
)

SETTLE_S = 2.0
"""How long the verifier has to confirm that a session was ended early."""


class Generation:
    """One running generation. `events` may be read once."""

    def __init__(
        self,
        started: GenerationStarted,
        prompt: tuple[int, ...],
        delivery: Delivery,
        stream: SessionStream,
        observation: Observation,
    ) -> None:
        self.started = started
        self.prompt = prompt
        self._delivery = delivery
        self._stream = stream
        self._observation = observation
        self._received = 0
        self._rounds = 0
        self._ended_early: FinishReason | None = None
        self._limit: asyncio.Timeout | None = None

    async def events(self) -> AsyncIterator[PromptLogprobs | GenerationDelta | GenerationFinished]:
        """Log-probabilities of the prompt if asked for, deltas as they come, then how it finished.

        Raises:
            OutriderError: the verifier failed.
        """
        session_finished: SessionFinished | None = None
        async for event in self._session_events():
            if isinstance(event, SessionFinished):
                session_finished = event
            elif self._ended_early is not None:
                continue
            elif isinstance(event, PromptLogprobs):
                yield event
            elif isinstance(event, SessionTokens):
                for delta in self._take(event):
                    yield self._observed(delta)
                if self._delivery.stopped:
                    await self._end(FinishReason.STOP)
        ended_by = session_finished.stop_token_id if session_finished and not self._ended_early else None
        for delta in self._delivery.finish(ended_by):
            yield self._observed(delta)
        if self._delivery.stopped:
            # It may be found only in text that was held back to the end; no-op if it was before.
            await self._end(FinishReason.STOP)
        finished = self._finished(session_finished)
        self._observation.finished(finished)
        yield finished

    async def cancel(self) -> None:
        """End it on the client's behalf; `events` then finishes with CANCELLED."""
        await self._end(FinishReason.CANCELLED)

    def abandon(self) -> None:
        """Nobody reads any more: end the session at the verifier at once. Idempotent."""
        self._stream.close()
        self._observation.close()

    async def _session_events(self) -> AsyncGenerator[SessionEvent]:
        """The verifier's events up to the end, or to when it should have confirmed an early one."""
        while True:
            try:
                async with asyncio.timeout(SETTLE_S if self._ended_early else None) as self._limit:
                    event = await self._stream.next()
            except TimeoutError:
                return
            except OutriderError:
                if self._ended_early is None:
                    raise
                return
            finally:
                self._limit = None
            if event is None:
                if self._ended_early is None:
                    raise UnavailableError("the verifier ended the stream before the session was over")
                return
            yield event
            if isinstance(event, SessionFinished):
                return

    def _take(self, event: SessionTokens) -> list[GenerationDelta]:
        if event.first_token != self._received:
            raise InternalError(f"the verifier sent token {event.first_token}, {self._received} was next")
        self._received += len(event.token_ids)
        self._rounds += 1
        return self._delivery.push(event.token_ids, event.accepted, event.logprobs)

    def _observed(self, delta: GenerationDelta) -> GenerationDelta:
        self._observation.delivered(len(delta.token_ids))
        return delta

    async def _end(self, reason: FinishReason) -> None:
        """Tell the verifier that what was delivered is all there is."""
        if self._ended_early is not None:
            return
        self._ended_early = reason
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time() + SETTLE_S)
        keep = self._delivery.delivered
        await self._stream.cancel(CancelSession(self.started.generation_id, keep, reason))

    def _finished(self, event: SessionFinished | None) -> GenerationFinished:
        """Counts of what was delivered; rounds and drafts are those that the verifier really ran."""
        delivered, accepted = self._delivery.delivered, self._delivery.accepted
        if event is not None:
            reason = self._ended_early or event.reason
            usage = replace(event.usage, completion_tokens=delivered)
            return GenerationFinished(reason, usage, replace(event.speculation, accepted_tokens=accepted))
        stats = SpeculationStats(rounds=self._rounds, draft_tokens=accepted, accepted_tokens=accepted)
        return GenerationFinished(
            self._ended_early or FinishReason.STOP, Usage(len(self.prompt), delivered), stats
        )
