"""Attempts to place one session: each is above all earlier ones, also above those that gave no answer."""

import asyncio
import itertools

import pytest

from outrider.core.errors import (
    ProtocolError,
    SessionNotFoundError,
    StaleEpochError,
    StoreUnavailableError,
    UnavailableError,
)
from outrider.core.params import SamplingParams
from outrider.gateway.attaching import ELSEWHERE, Attaching, Origin
from outrider.wire.messages import SessionRequest, SessionStarted, StopRequest

LOST = UnavailableError("lost")
AWAY = StoreUnavailableError("the store is away")


class Stream:
    def __init__(self, link, event):
        self.link = link
        self._event = event

    async def next(self):
        if isinstance(self._event, Exception):
            raise self._event
        return self._event

    def close(self):
        pass


class Link:
    """A verifier that answers as planned, and counts epochs as it does that has the session now."""

    address = "verifier"

    def __init__(self, to_resume, to_generate):
        self.to_resume, self.to_generate = to_resume, to_generate
        self.restored = []

    def generate(self, request, timeout_s, metadata):
        self.restored.append(request.epoch)
        return Stream(self, self.to_generate)

    def resume(self, wanted, timeout_s, metadata):
        return Stream(self, self.to_resume)

    def lost(self):
        pass


def attaching():
    request = SessionRequest("s", (1, 2), SamplingParams(seed=1), StopRequest(max_tokens=8))
    deadline = asyncio.get_running_loop().time() + 60
    return Attaching(Origin("s", "", request), metadata=(), deadline=deadline)


@pytest.mark.parametrize(
    "failures",
    [*itertools.product([LOST, AWAY], repeat=3)],
    ids=lambda errors: "-".join(type(error).__name__ for error in errors),
)
async def test_a_restore_is_above_every_attempt_that_may_have_had_an_effect(failures):
    attempts = attaching()
    # What the store may have come to: 1 by the first, one more by each claim that nobody heard of,
    # and whatever a restore said that waits for it.
    highest = 0
    for error in failures:
        link = Link(error, error)
        with pytest.raises(UnavailableError):
            await attempts.attach(link, ())
        highest = max([highest + 1, *link.restored])
    last = Link(SessionNotFoundError("flushed"), SessionStarted(1, 99, b"", 2))
    await attempts.attach(last, ())
    assert last.restored[-1] > highest


async def test_what_the_store_knows_better_is_resumed_by_the_next_attempt():
    attempts = attaching()
    with pytest.raises(UnavailableError):
        await attempts.attach(Link(LOST, LOST), ())
    back = Link(AWAY, ProtocolError("session s finished already (length)"))
    with pytest.raises(StaleEpochError, match="finished already") as caught:
        await attempts.attach(back, (5,))
    assert isinstance(caught.value, ELSEWHERE) and back.restored
    last = Link(SessionStarted(1, 2, b"", 2), LOST)
    assert (await attempts.attach(last, (5,)))[1].epoch == 2 and not last.restored


async def test_a_restore_is_above_the_epoch_that_a_verifier_said():
    attempts = attaching()
    await attempts.attach(Link(None, SessionStarted(1, 1, b"", 2)), ())
    await attempts.attach(Link(SessionStarted(1, 7, b"", 2), None), ())
    last = Link(SessionNotFoundError("flushed"), SessionStarted(1, 8, b"", 2))
    await attempts.attach(last, ())
    assert last.restored[0] > 7
