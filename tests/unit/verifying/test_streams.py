"""What a client that comes later gets again."""

from __future__ import annotations

import pytest

from outrider.core.errors import InvalidRequestError
from outrider.core.params import TokenLogprobs
from outrider.verifying.streams import replay
from outrider.wire.messages import SessionTokens

TOKENS = [10, 11, 12, 13, 14]
TOLD = [TokenLogprobs(token, -1.0, 1) for token in TOKENS]


@pytest.mark.parametrize("from_token", range(6))
def test_tokens_without_log_probabilities_come_as_one_item(from_token: int) -> None:
    expected = [SessionTokens(from_token, tuple(TOKENS[from_token:]))] if from_token < 5 else []
    assert replay(TOKENS, from_token) == expected


@pytest.mark.parametrize("known", range(6))
@pytest.mark.parametrize("from_token", range(6))
def test_those_that_came_from_the_store_have_none(from_token: int, known: int) -> None:
    items = replay(TOKENS, from_token, TOLD[known:])
    position = from_token
    for item in items:
        assert item.first_token == position and item.token_ids
        first, position = position, position + len(item.token_ids)
        assert item.token_ids == tuple(TOKENS[first:position])
        assert item.logprobs == (tuple(TOLD[first:position]) if first >= known else ())
        assert first >= known or position <= known
    assert position == 5


def test_past_the_end_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        replay(TOKENS, 6, TOLD)
