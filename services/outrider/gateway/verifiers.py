"""All verifiers of a gateway: who is there, and which one takes a session."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from outrider.core.errors import (
    InternalError,
    ModelMismatchError,
    OutriderError,
    OverloadedError,
    UnavailableError,
)
from outrider.gateway.verifier_link import Metadata, SessionStream, VerifierLink
from outrider.wire.messages import SessionRequest, SessionStarted, VerifierInfo

_LOG = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 2.0
WATCH_INTERVAL_S = 2.0


class VerifierPool:
    """All verifiers of a gateway. They serve the same model."""

    def __init__(self, addresses: Sequence[str], check: Callable[[VerifierInfo, str], None]) -> None:
        """`check` raises ModelMismatchError for a verifier (second argument: its address) to refuse."""
        self._moved = asyncio.Event()
        self._links = [VerifierLink(address, self._moved) for address in addresses]
        self._check = check
        self._watchers: list[asyncio.Task[None]] = []
        self._turn = 0

    @property
    def info(self) -> VerifierInfo | None:
        """What a verifier that is there says of itself; None while none is."""
        return next((link.info for link in self._links if link.info is not None), None)

    @property
    def degraded(self) -> tuple[str, ...]:
        """What does not work as it should although requests are answered, in words for an operator."""
        reasons = []
        for link in self._links:
            troubles = ("does not answer",) if link.info is None else link.info.degraded
            reasons += [f"verifier {link.address}: {trouble}" for trouble in troubles]
        return tuple(reasons)

    async def availability(self) -> AsyncIterator[bool]:
        """Whether a verifier is there: now, and again whenever that may have changed."""
        while True:
            self._moved.clear()
            yield self.info is not None
            await self._moved.wait()

    async def connect(self) -> VerifierInfo:
        """Wait, for as long as it takes, until a verifier answers; then keep watching all of them.

        Raises:
            ModelMismatchError: one answered that must not be used.
        """
        tasks = [asyncio.create_task(self._await_answer(link)) for link in self._links]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            info = next(iter(done)).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._watchers = [asyncio.create_task(self._watch(link)) for link in self._links]
        return info

    async def open(
        self, request: SessionRequest, *, timeout_s: float, metadata: Metadata
    ) -> tuple[SessionStream, int]:
        """Start a session where the fewest run; the next verifier is tried if one is away or full.

        Returns the stream behind its first event, and the seed in force. The stream has another session
        id if a verifier failed that may have claimed the first one in the store.

        Raises:
            OutriderError: why the last verifier that was tried did not take it.
        """
        failure: OutriderError = UnavailableError("no verifier is available")
        for link in self._by_load():
            stream = SessionStream(link, request, timeout_s, metadata)
            try:
                started = await stream.next()
                if not isinstance(started, SessionStarted):
                    raise InternalError(f"verifier {link.address} did not say that the session started")
            except (UnavailableError, OverloadedError) as error:
                failure = error
                stream.close()
                request = replace(request, session_id=str(uuid.uuid4()))
                if isinstance(error, UnavailableError):
                    link.lost()
            except BaseException:
                stream.close()
                raise
            else:
                return stream, started.seed
        raise failure

    async def close(self) -> None:
        """Stop watching and close all connections."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for link in self._links:
            await link.close()

    def _by_load(self) -> list[VerifierLink]:
        """Those that are there, least loaded first; equals take turns."""
        self._turn += 1
        count = len(self._links)
        turned = [self._links[(self._turn + offset) % count] for offset in range(count)]
        return sorted((link for link in turned if link.info is not None), key=lambda link: link.running)

    async def _await_answer(self, link: VerifierLink) -> VerifierInfo:
        backoff = FIRST_BACKOFF_S
        said = ""
        while True:
            try:
                info = await link.ask()
            except ModelMismatchError:
                raise
            except OutriderError as error:
                if str(error) != said:  # a verifier that loads for minutes is no news every two seconds
                    said = str(error)
                    _LOG.info("verifier %s does not answer yet: %s", link.address, error)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, LAST_BACKOFF_S)
            else:
                self._check(info, link.address)
                link.found(info)
                return info

    async def _watch(self, link: VerifierLink) -> None:
        """Notice when the verifier goes, comes back, or comes back as another one."""
        while True:
            try:
                info = await link.ask()
                if link.info is None or link.info.instance_id != info.instance_id:
                    self._check(info, link.address)
                    _LOG.info("verifier %s serves %s", link.address, info.model.model_name)
                link.found(info)
                wait = WATCH_INTERVAL_S
            except OutriderError as error:
                if link.info is not None:
                    _LOG.warning("verifier %s is away: %s", link.address, error)
                link.found(None)
                wait = FIRST_BACKOFF_S * 4
            link.changed.clear()
            try:
                await asyncio.wait_for(link.changed.wait(), wait)
            except TimeoutError:
                continue
