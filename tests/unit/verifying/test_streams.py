"""What a client that comes later gets again, and what it does not get."""

from __future__ import annotations

import pytest

from outrider.core.errors import InvalidRequestError
from outrider.core.params import SamplingParams, StopParams, TokenLogprobs
from outrider.core.sessions import FinishReason, SessionRecord, SpeculationStats, Usage
from outrider.verifying.attachment import Attachment, replay
from outrider.wire.messages import SessionFinished, SessionStarted, SessionTokens

TOKENS = [10, 11, 12, 13, 14]
TOLD = [TokenLogprobs(token, -1.0, 1) for token in TOKENS]
RECORD = SessionRecord("s", (1, 2, 3), SamplingParams(seed=4), StopParams(9), epoch=5, presentation=b"p")
FINISHED = SessionFinished(FinishReason.LENGTH, Usage(3, 5), SpeculationStats())


@pytest.mark.parametrize("from_token", range(7))
def test_tokens_without_log_probabilities_come_as_one_item(from_token: int) -> None:
    expected = [SessionTokens(from_token, tuple(TOKENS[from_token:]))] if from_token < 5 else []
    assert replay(TOKENS, from_token) == expected


@pytest.mark.parametrize("bare", range(5))
@pytest.mark.parametrize("from_token", range(5))
def test_tokens_come_with_their_own_log_probabilities(from_token: int, bare: int) -> None:
    if from_token >= bare:
        items = replay(TOKENS, from_token, TOLD[bare:])
        assert items == [
            SessionTokens(from_token, tuple(TOKENS[from_token:]), logprobs=tuple(TOLD[from_token:]))
        ]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("from_token", range(6))
async def test_what_comes_before_the_token_asked_for_is_not_told(from_token: int, size: int) -> None:
    attachment = Attachment(RECORD, from_token=from_token)
    for start in range(0, 5, size):
        run = tuple(TOKENS[start : start + size])
        told = tuple(TOLD[start : start + size])
        attachment.push(SessionTokens(start, run, accepted=len(run) - 1, logprobs=told))
    attachment.push(FINISHED)
    first, *runs, last = [event async for event in attachment.events()]
    assert first == SessionStarted(4, 5, b"p", 3) and last == FINISHED
    position = from_token
    for run in runs:
        assert isinstance(run, SessionTokens) and run.first_token == position and run.token_ids
        position += len(run.token_ids)
        assert run.token_ids == tuple(TOKENS[run.first_token : position])
        assert run.logprobs == tuple(TOLD[run.first_token : position])
        assert 0 <= run.accepted < len(run.token_ids) + 1
    assert position == 5


async def test_a_session_that_ends_before_the_token_asked_for_is_an_error() -> None:
    attachment = Attachment(RECORD, from_token=6)
    attachment.push(SessionTokens(0, tuple(TOKENS)))
    attachment.push(FINISHED)
    with pytest.raises(InvalidRequestError) as caught:
        async for event in attachment.events():
            assert isinstance(event, SessionStarted)
    assert caught.value.field == "from_token"


async def test_a_closed_attachment_keeps_nothing() -> None:
    attachment = Attachment(RECORD)
    attachment.push(SessionTokens(0, tuple(TOKENS)))
    attachment.close()
    attachment.push(FINISHED)
    assert attachment.is_closed and attachment._items.empty()
