"""One generation from admission to finish: what the HTTP and the gRPC API share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

from outrider.core.errors import UnavailableError
from outrider.core.sessions import FinishReason, SpeculationStats, Usage
from outrider.gateway.background import Background
from outrider.gateway.delivery import Delivery
from outrider.gateway.failover import Session
from outrider.gateway.observation import Observation
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
        delivery: Delivery,
        session: Session,
        observation: Observation,
        background: Background,
        *,
        tenant: str = "",
        prompt: tuple[int, ...] = (),
        prompt_tokens: int = 0,
        presentation: bytes = b"",
        resumed: bool = False,
    ) -> None:
        """Args:
        started: what the client is told first.
        delivery: makes the client's text.
        session: the verifiers' side; closed with this.
        observation: its span and metrics; closed with this.
        background: runs what has to be said to a verifier afterwards.
        tenant: whose it is.
        prompt: not known (empty) of one that was resumed.
        prompt_tokens: its length.
        presentation: what was noted of the delivery when it was admitted.
        resumed: its client has come back to it.
        """
        self.started = started
        self.tenant = tenant
        self.prompt = prompt
        self.prompt_tokens = prompt_tokens
        self.presentation = presentation
        self._resumed = resumed
        self._delivery = delivery
        self._session = session
        self._observation = observation
        self._background = background
        self._left = False
        self._ended_early: FinishReason | None = None
        self._cancelled = False  # to be ended as soon as the client's own tokens have come again
        self._limit: asyncio.Timeout | None = None

    async def events(self) -> AsyncIterator[PromptLogprobs | GenerationDelta | GenerationFinished]:
        """Log-probabilities of the prompt if asked for, deltas as they come, then how it finished.

        Raises:
            UnavailableError: no verifier could go on with it in time, or this gateway stops.
            StaleEpochError: another client has resumed it.
            OutriderError: it failed.
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
                for delta in self._delivery.push(event.token_ids, event.accepted, event.logprobs):
                    yield self._observed(delta)
                await self._end_if_due()
        if self._cancelled and session_finished is None and self._delivery.repeats:
            yield await self._cut_off()
            return
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
        """End it on the client's behalf; `events` then finishes with CANCELLED.

        One that is still to come to where its client is goes on until there: nothing that was delivered
        before is taken back.
        """
        self._cancelled = True
        if not self._delivery.repeats:
            await self._end(FinishReason.CANCELLED)
        elif self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time() + SETTLE_S)

    def abandon(self, *, park: bool) -> None:
        """Nobody reads any more: what runs is parked, to be resumed, or ended. The first call counts."""
        if self._left:
            return
        self._left = True
        self._session.give_up(self._background, park=park)
        self._observation.close()

    def stop(self, error: UnavailableError) -> None:
        """Let `events` end with `error`."""
        self._session.stop(error)

    async def _session_events(self) -> AsyncGenerator[SessionEvent]:
        """The verifier's events up to the end, or to when it should have confirmed an early one."""
        while True:
            try:
                ending = self._cancelled or self._ended_early
                async with asyncio.timeout(SETTLE_S if ending else None) as self._limit:
                    event = await self._session.next()
            except TimeoutError:
                return
            finally:
                self._limit = None
            if event is None:
                return
            yield event
            if isinstance(event, SessionFinished):
                return

    def _observed(self, delta: GenerationDelta) -> GenerationDelta:
        if delta.first_token >= self._delivery.resumed_at:  # the others were counted when they were delivered
            self._observation.delivered(len(delta.token_ids))
        return delta

    async def _end_if_due(self) -> None:
        if self._delivery.stopped:
            await self._end(FinishReason.STOP)
        elif self._cancelled:
            await self.cancel()

    async def _cut_off(self) -> GenerationFinished:
        """Cancelled, and its client's own tokens do not come: all of them were delivered, no matter where."""
        had = self._delivery.resumed_at
        self._ended_early = FinishReason.CANCELLED
        await self._session.end(CancelSession(self.started.generation_id, had, FinishReason.CANCELLED))
        finished = replace(self._finished(None), usage=Usage(self.prompt_tokens, had))
        self._observation.finished(finished)
        return finished

    async def _end(self, reason: FinishReason) -> None:
        """Tell the verifier that what was delivered is all there is."""
        if self._ended_early is not None:
            return
        self._ended_early = reason
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time() + SETTLE_S)
        keep = self._delivery.delivered
        await self._session.end(CancelSession(self.started.generation_id, keep, reason))

    def _finished(self, event: SessionFinished | None) -> GenerationFinished:
        """Counts of what was delivered; rounds and drafts are those that the verifier really ran."""
        delivered, accepted = self._delivery.delivered, self._delivery.accepted
        if event is not None:
            reason = self._ended_early or event.reason
            usage = replace(event.usage, completion_tokens=delivered)
            if self._resumed:  # tokens that are told again do not say how they came: the verifier knows
                accepted = min(delivered, max(accepted, event.speculation.accepted_tokens))
            return GenerationFinished(reason, usage, replace(event.speculation, accepted_tokens=accepted))
        stats = SpeculationStats(rounds=self._session.rounds, draft_tokens=accepted, accepted_tokens=accepted)
        return GenerationFinished(
            self._ended_early or FinishReason.STOP, Usage(self.prompt_tokens, delivered), stats
        )
