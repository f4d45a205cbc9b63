"""The search for a verifier: its attempts, the pauses between them, and what it says if there is none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from outrider.core.backoff import Backoff
from outrider.core.errors import OutriderError, OverloadedError, UnavailableError
from outrider.gateway.verifier_link import VerifierLink

FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 1.0


class Search:
    """What the attempts of one failover met."""

    def __init__(self) -> None:
        self.attempts = 0
        self._errors: dict[str, int] = {}
        self._backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)

    def failed(self, link: VerifierLink, error: OutriderError) -> None:
        """The verifier did not take it."""
        text = f"{link.address}: {error}"
        self._errors[text] = self._errors.get(text, 0) + 1

    async def pause(self, upcoming: asyncio.Event, *, tried: bool) -> None:
        """Before all are tried again. One that was `tried` has its pause, whatever it says; if there was none
        to try, one that comes (`upcoming`) is tried at once.
        """
        if tried:
            await asyncio.sleep(self._backoff.next_s())
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(upcoming.wait(), LAST_BACKOFF_S)

    def said(self) -> str:
        """What it met, in words."""
        told = [f"{text} ({times} times)" for text, times in self._errors.items()]
        return "; ".join(told) or "no verifier was there"


def why_none(failures: Sequence[OutriderError]) -> OutriderError:
    """What to tell the client: when to try again, if that is of use, before that it is of none."""
    overloaded = [error for error in failures if isinstance(error, OverloadedError)]
    if overloaded:
        return min(overloaded, key=lambda error: error.retry_after_s)
    if not failures:
        return UnavailableError("no verifier is available")
    passing = [error for error in failures if isinstance(error, UnavailableError)]
    return passing[-1] if passing else failures[-1]
