"""One session as its gateway sees it: a single stream of events, whichever verifiers run it.

When the verifier is lost, or hands the session over, another one is asked to go on behind the last token
received. It claims the session first; the old stream is dropped afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from outrider.core.errors import (
    DeadlineExceededError,
    InternalError,
    OutriderError,
    OverloadedError,
    RequestCancelledError,
    SessionMovedError,
    SessionNotFoundError,
    SessionParkedError,
    StaleEpochError,
    StoreUnavailableError,
    SupersededError,
    UnavailableError,
    describe,
)
from outrider.gateway.attaching import ELSEWHERE, Attaching, Origin
from outrider.gateway.background import Background
from outrider.gateway.observation import Observation
from outrider.gateway.receiving import Received
from outrider.gateway.searching import Search, why_none
from outrider.gateway.verifier_link import Metadata, SessionStream, VerifierLink
from outrider.gateway.verifiers import VerifierPool
from outrider.wire.messages import (
    CancelSession,
    SessionEvent,
    SessionFinished,
    SessionStarted,
    SessionTokens,
)

_LOG = logging.getLogger(__name__)

RECHECK_S = 0.5
"""How long a verifier whose stream broke has to show that it is there: it still has the session."""
MAX_FRUITLESS = 5
"""A session that lost so many verifiers in a row without a token in between goes to no other one."""


class Session:
    """Events of one session, each exactly once and in order. Must be given up in the end."""

    def __init__(
        self,
        pool: VerifierPool,
        origin: Origin,
        observation: Observation,
        *,
        metadata: Metadata,
        timeout_s: float,
        failover_s: float,
    ) -> None:
        """Args:
        pool: the verifiers.
        origin: which session.
        observation: is told of each failover.
        metadata: for every call.
        timeout_s: of the whole session, from now on.
        failover_s: how long it may be without a verifier.
        """
        self.session_id = origin.session_id
        self._pool = pool
        self._origin = origin
        self._observation = observation
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._attaching = Attaching(origin, metadata=metadata, deadline=self._deadline)
        self._failover_s = failover_s
        self._received = Received()
        self._stream: SessionStream | None = None
        self._model = ""  # identity of the model that began it
        self._owner = 0  # epoch of the verifier whose stream is read
        self._fruitless = 0
        self._searching: asyncio.Timeout | None = None
        self._end: CancelSession | None = None
        self._stop: UnavailableError | None = None
        self.over = False  # nobody holds it for us: it is finished, or somebody else's

    @property
    def holder(self) -> str:
        """Address of the verifier that was the last to be asked for it; empty: none."""
        link = self._attaching.link
        return link.address if link is not None else ""

    @property
    def rounds(self) -> int:
        """Rounds that brought tokens."""
        return self._received.rounds

    async def open(self) -> SessionStarted:
        """Place it: the next verifier is tried if one is away or full.

        Raises:
            OverloadedError: all are full; the soonest that one of them says to try again.
            OutriderError: why no verifier has taken it.
        """
        failures: list[OutriderError] = []
        for _ in range(2):
            if (started := await self._first_of(self._places(self._origin.holder), failures)) is not None:
                return started
            if not await self._pool.recheck(RECHECK_S):
                break
        self.over = all(isinstance(error, OverloadedError | SessionNotFoundError) for error in failures)
        raise why_none(failures)

    async def next(self) -> SessionEvent | None:
        """The next event. After `end`, None when the verifier says no more.

        Raises:
            UnavailableError: no verifier could go on with it in time.
            StaleEpochError: another client has resumed it.
            OutriderError: it failed.
        """
        new = None
        while new is None:
            event = await self._next_anywhere()
            if event is None:
                return None
            new = self._received.take(event)
        if isinstance(new, SessionFinished):
            self.over = True
        elif isinstance(new, SessionTokens):
            self._fruitless = 0
            if (pause_s := self._received.pause()) is not None:
                self._observation.resumed(pause_s)
        return new

    async def end(self, cancel: CancelSession) -> None:
        """Tell whoever has it that this is all; one that has it later is told then."""
        self._end = cancel
        if self._stream is not None and self._searching is None:
            await self._stream.link.cancel(cancel)

    def stop(self, error: UnavailableError) -> None:
        """Let `next` raise `error` instead of waiting or moving on."""
        self._stop = error
        if self._searching is not None:
            self._searching.reschedule(asyncio.get_running_loop().time())
        elif self._stream is not None:
            self._stream.sever(error)

    def give_up(self, background: Background, *, park: bool) -> None:
        """Stop reading, and have it parked (to be resumed) or ended where it is, unless it is over."""
        self._close()
        if not self.over and (link := self._attaching.link) is not None:
            last_word = self._end or CancelSession(self.session_id, park=park)
            background.start(link.cancel(last_word), self.session_id)

    # --- one verifier -----------------------------------------------------------------------

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    async def _next_anywhere(self) -> SessionEvent | None:
        """The next event, of another verifier if this one has no more; None after `end`."""
        while True:
            try:
                return await self._next_here()
            except OutriderError as error:
                if self._stop is not None:
                    raise self._stop from error
                if self._end is not None:
                    return None
                if isinstance(error, OverloadedError) and not self._received.tokens:
                    await self._go_elsewhere(error)
                elif self._may_move(error):
                    await self._move(error)
                else:
                    raise
            await self._tell_here()

    async def _tell_here(self) -> None:
        """What was said while the session moved, to where it is now."""
        assert self._stream is not None
        if self._stop is not None:
            raise self._stop
        if self._end is not None:
            await self._stream.link.cancel(self._end)

    async def _next_here(self) -> SessionEvent | None:
        assert self._stream is not None
        event = await self._stream.next()
        if event is None and self._end is None:
            raise UnavailableError("the verifier ended the stream before the session was over")
        return event

    async def _attach(self, link: VerifierLink) -> SessionStarted:
        """The new stream takes the old one's place once it has said that the session goes on."""
        stream, started = await self._attaching.attach(link, self._received.tokens)
        self._close()
        self._stream = stream
        if link.info is not None:
            self._model = link.info.model.identity
        self._received.attached(same_owner=started.epoch == self._owner)
        self._owner = started.epoch
        return started

    # --- from one to the next ---------------------------------------------------------------

    def _may_move(self, error: OutriderError) -> bool:
        """Whether another verifier may go on with what ended here with `error`."""
        if isinstance(error, StaleEpochError):
            # Ours only if an attempt of our own claimed it late; never take it back from a newer client.
            mine = self._attaching.loose and not isinstance(error, SupersededError)
            self.over = not mine
            return mine
        return isinstance(error, UnavailableError | RequestCancelledError | SessionNotFoundError)

    async def _first_of(
        self, places: Sequence[VerifierLink], failures: list[OutriderError]
    ) -> SessionStarted | None:
        """Place it on the first one that takes it; None: none does, for these reasons."""
        for link in places:
            try:
                return await self._attach(link)
            except ELSEWHERE as error:
                failures.append(error)
            except (DeadlineExceededError, InternalError):
                raise  # the verifier may go on with it
            except OutriderError:
                self.over = True  # it was refused
                raise
        return None

    async def _go_elsewhere(self, cause: OverloadedError) -> None:
        """A verifier put it out of its queue: place it on one that has room.

        Raises:
            OverloadedError: none has; the soonest that one of them says to try again.
        """
        assert self._stream is not None
        lost = self._stream.link
        places = [link for link in self._places("") if link is not lost and not link.candidate.full]
        failures: list[OutriderError] = [cause]
        if await self._first_of(places, failures) is None:
            raise why_none(failures) from cause

    async def _move(self, cause: OutriderError) -> None:
        """Find a verifier that goes on with it.

        Raises:
            UnavailableError: none did within `failover_s`, or it lost one after the other.
            DeadlineExceededError: the session's own time passed first.
            OutriderError: why no other may.
        """
        assert self._stream is not None
        reason = describe(cause).label
        lost = self._stream.link
        _LOG.warning("session %s: verifier %s: %s", self.session_id, lost.address, cause)
        if not isinstance(cause, SessionMovedError):
            self._fruitless += 1
            if self._fruitless > MAX_FRUITLESS:
                raise UnavailableError(
                    f"the session has lost {self._fruitless} verifiers one after the other"
                ) from cause
        self._received.broken()
        until = min(asyncio.get_running_loop().time() + self._failover_s, self._deadline)
        search = Search()
        try:
            async with asyncio.timeout_at(until) as self._searching:
                await self._search(lost, cause, search)
        except TimeoutError:
            self._observation.failed_over(reason, search.attempts, "given_up")
            if self._stop is not None:
                raise self._stop from cause
            _LOG.warning("session %s: given up: %s", self.session_id, search.said())
            raise self._gave_up(until, search) from cause
        except OutriderError:
            self._observation.failed_over(reason, search.attempts, "refused")
            raise
        finally:
            self._searching = None
        self._observation.failed_over(reason, search.attempts, "moved")

    async def _search(self, lost: VerifierLink, cause: OutriderError, search: Search) -> None:
        """Try all that are there, again and again."""
        holder = await self._still_there(lost, cause)
        while True:
            upcoming = self._pool.moved.upcoming
            places = self._places(holder)
            for link in places:
                search.attempts += 1
                try:
                    await self._attach(link)
                except SessionNotFoundError:
                    raise  # nor can it be restored
                except ELSEWHERE as error:
                    search.failed(link, error)
                else:
                    return
            await search.pause(upcoming, tried=bool(places))

    async def _still_there(self, lost: VerifierLink, cause: OutriderError) -> str:
        """Address of the verifier if it answers although its stream broke; empty: it does not."""
        if isinstance(cause, StoreUnavailableError | SessionParkedError):
            return lost.address
        lost.lost()
        if isinstance(cause, SessionMovedError | StaleEpochError):
            return ""
        await self._pool.recheck(RECHECK_S, [lost])
        return lost.address

    def _places(self, holder: str) -> Sequence[VerifierLink]:
        return self._pool.places(key=self._origin.key, holder=holder, model=self._model)

    def _gave_up(self, until: float, search: Search) -> OutriderError:
        if until >= self._deadline:
            return DeadlineExceededError("the request's time passed while its session had no verifier")
        return UnavailableError(
            f"the verifier was lost, and no other one went on with the session within {self._failover_s:g} s "
            f"({search.attempts} attempts)"
        )
