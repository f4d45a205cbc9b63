"""Has verifiers begin a session, go on with it, or restore it: one attempt after the other, on one each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic

from outrider.core.errors import (
    InternalError,
    OutriderError,
    OverloadedError,
    ProtocolError,
    RequestCancelledError,
    SessionExistsError,
    SessionMovedError,
    SessionNotFoundError,
    StaleEpochError,
    StoreUnavailableError,
    UnavailableError,
)
from outrider.gateway.verifier_link import Metadata, SessionStream, VerifierLink
from outrider.wire.messages import ResumeSession, SessionRequest, SessionStarted

LOOSE_S = 5.0
"""How long after an attempt seemed to fail it may yet have claimed the session."""
ELSEWHERE = (
    UnavailableError,
    OverloadedError,
    RequestCancelledError,
    SessionNotFoundError,
    SessionExistsError,
    StaleEpochError,
)
"""What an attempt may meet that one on another verifier may not."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What is asked for: a new session, or one that the verifiers' store knows."""

    session_id: str
    tenant: str
    request: SessionRequest | None = None  # None: it is to be resumed
    key: bytes = b""  # see placement
    holder: str = ""  # the verifier that is likely to have it
    mark: bytes = b""  # of one that is to be resumed: see ResumeSession


class Attaching:
    """The attempts for one session. What they left behind decides how the next one is made."""

    def __init__(self, origin: Origin, *, metadata: Metadata, deadline: float) -> None:
        """Args:
        origin: which session.
        metadata: for every call.
        deadline: of every call, by the loop's clock.
        """
        self.link: VerifierLink | None = None  # the last that was asked
        self._origin = origin
        self._metadata = metadata
        self._deadline = deadline
        self._epoch = 0  # the highest that somebody may have it with
        self._maybe_there = origin.request is None  # a verifier may know it
        self._loose_until = 0.0

    @property
    def loose(self) -> bool:
        """An attempt that seemed to fail may yet claim the session."""
        return monotonic() < self._loose_until

    async def attach(self, link: VerifierLink, tokens: Sequence[int]) -> tuple[SessionStream, SessionStarted]:
        """The stream of a verifier that has the session now, behind `tokens`, and its first event.

        Raises:
            OutriderError: it has not; one of ELSEWHERE if another one may be asked.
        """
        self.link = link
        try:
            return await self._attach(link, tuple(tokens))
        except ELSEWHERE as error:
            self._note(link, error)
            raise

    async def _attach(
        self, link: VerifierLink, tokens: tuple[int, ...]
    ) -> tuple[SessionStream, SessionStarted]:
        request = self._origin.request
        if request is not None and not self._maybe_there:
            self._maybe_there, self._epoch = True, request.epoch
            try:
                return await _begun(link.generate(request, self._remaining(), self._metadata))
            except OverloadedError:
                self._maybe_there = False  # it says so before it does anything
                raise
            except SessionExistsError:
                pass  # an attempt of ours
        # Whatever comes of an attempt, even one without an answer, the next one is above it: two that both
        # wait for the store must not be equals.
        self._epoch += 1
        wanted = ResumeSession(
            self._origin.session_id, len(tokens), self._origin.tenant, tokens, self._origin.mark
        )
        try:
            return await self._seen(link.resume(wanted, self._remaining(), self._metadata))
        except (SessionNotFoundError, StoreUnavailableError):
            if request is None:
                raise
        self._epoch += 1
        restored = replace(request, generated=tokens, epoch=self._epoch)
        try:
            return await self._seen(link.generate(restored, self._remaining(), self._metadata))
        except ProtocolError as error:  # the store is back, and knows it better: it can be resumed
            raise StaleEpochError(f"session {request.session_id} cannot be restored: {error}") from error

    async def _seen(self, stream: SessionStream) -> tuple[SessionStream, SessionStarted]:
        stream, started = await _begun(stream)
        self._epoch = max(self._epoch, started.epoch)
        return stream, started

    def _note(self, link: VerifierLink, error: OutriderError) -> None:
        if isinstance(error, UnavailableError | RequestCancelledError):
            self._loose_until = monotonic() + LOOSE_S
            if not isinstance(error, StoreUnavailableError | SessionMovedError):
                link.lost()

    def _remaining(self) -> float:
        return max(0.0, self._deadline - asyncio.get_running_loop().time())


async def _begun(stream: SessionStream) -> tuple[SessionStream, SessionStarted]:
    try:
        started = await stream.next()
        if not isinstance(started, SessionStarted):
            raise InternalError(f"verifier {stream.link.address} did not say that the session started")
    except BaseException:
        stream.close()
        raise
    return stream, started
