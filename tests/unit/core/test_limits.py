"""The bounds of request parameters: what stands just inside passes, what stands just outside is named."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from outrider.core import limits
from outrider.core.errors import InvalidRequestError, PromptTooLongError
from outrider.core.params import SamplingParams, SpeculationParams, StopParams

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0},
        {"temperature": limits.MIN_TEMPERATURE},
        {"temperature": limits.MAX_TEMPERATURE},
        {"top_k": 1},
        {"top_k": limits.MAX_TOP_K},
        {"top_p": 1e-9},
        {"top_p": 1},
        {"min_p": 1.0},
        {"typical_p": 1e-9},
        {"typical_p": 1},
        {"seed": 2**64 - 1},
    ],
)
def test_sampling_inside(changes: dict[str, Any]) -> None:
    limits.check_sampling(dataclasses.replace(SamplingParams(), **changes))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in (-0.1, 1e-4, 100.5, NAN, INF, -INF, "1", None, True)),
        *(("top_k", value) for value in (-1, 2**31, 1.0, NAN, True, None)),
        *(("top_p", value) for value in (0.0, -0.1, 1.0000001, NAN, INF, None, False)),
        *(("min_p", value) for value in (-1e-9, 1.1, NAN, INF, None)),
        *(("typical_p", value) for value in (0.0, -0.1, 1.0000001, NAN, INF, None, False)),
        *(("seed", value) for value in (-1, 2**64, 1.0, None)),
    ],
)
def test_sampling_outside(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field} must be") as caught:
        limits.check_sampling(dataclasses.replace(SamplingParams(), **{field: value}))
    assert caught.value.field == field


def test_a_message_says_what_was_wrong_and_what_is_allowed() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        limits.check_sampling(SamplingParams(min_p=1.5))
    assert str(caught.value) == "min_p must be a number from 0 to 1, got 1.5"
    with pytest.raises(InvalidRequestError) as caught:
        limits.check_sampling(SamplingParams(temperature=0.0001))
    assert str(caught.value) == "temperature must be 0 (greedy) or at least 0.001, got 0.0001"


def test_stop_inside() -> None:
    limits.check_stop(StopParams(max_tokens=1))
    limits.check_stop(StopParams(max_tokens=5, stop_token_ids=frozenset({0, 9})), vocab_size=10)
    limits.check_stop(StopParams(max_tokens=5, stop_token_ids=frozenset({2**31 - 1})))


@pytest.mark.parametrize(
    ("stop", "field"),
    [
        (StopParams(max_tokens=0), "max_tokens"),
        (StopParams(max_tokens=-3), "max_tokens"),
        (StopParams(max_tokens=2**31), "max_tokens"),
        (StopParams(max_tokens=1, stop_token_ids=frozenset({10})), "stop_token_ids"),
        (StopParams(max_tokens=1, stop_token_ids=frozenset({-1})), "stop_token_ids"),
        (StopParams(max_tokens=1, stop_token_ids=frozenset(range(1000))), "stop_token_ids"),
    ],
)
def test_stop_outside(stop: StopParams, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field} must") as caught:
        limits.check_stop(stop, vocab_size=10)
    assert caught.value.field == field


def test_stop_strings() -> None:
    limits.check_stop_strings([])
    limits.check_stop_strings(["\n", "x" * limits.MAX_STOP_STRING_CHARS])
    for bad in (["a"] * (limits.MAX_STOP_STRINGS + 1), [""], ["x" * (limits.MAX_STOP_STRING_CHARS + 1)]):
        with pytest.raises(InvalidRequestError, match=r"^stop must hold") as caught:
            limits.check_stop_strings(bad)
        assert caught.value.field == "stop"


def test_speculation() -> None:
    limits.check_speculation(SpeculationParams())
    limits.check_speculation(SpeculationParams(max_draft_tokens=0, drafter="x"))
    for speculation, field in (
        (SpeculationParams(max_draft_tokens=-1), "max_draft_tokens"),
        (SpeculationParams(max_draft_tokens=limits.MAX_DRAFT_TOKENS + 1), "max_draft_tokens"),
        (SpeculationParams(drafter="x" * 200), "drafter"),
    ):
        with pytest.raises(InvalidRequestError, match=f"^{field} must be") as caught:
            limits.check_speculation(speculation)
        assert caught.value.field == field


def test_prompt() -> None:
    limits.check_prompt([0, 9], vocab_size=10, context_length=3)
    limits.check_prompt([2**31 - 1] * 5000, vocab_size=0, context_length=0)
    for prompt in ([], [0, 10], [-1, 3]):
        with pytest.raises(InvalidRequestError, match=r"^prompt must") as caught:
            limits.check_prompt(prompt, vocab_size=10, context_length=100)
        assert caught.value.field == "prompt"


def test_a_prompt_leaves_room_for_one_token() -> None:
    limits.check_prompt([1] * 7, vocab_size=10, context_length=8)
    with pytest.raises(PromptTooLongError, match="at most 7 tokens .* context of 8") as caught:  # noqa: RUF043
        limits.check_prompt([1] * 8, vocab_size=10, context_length=8)
    assert caught.value.field == "prompt"


def test_length() -> None:
    limits.check_length(5, 3, context_length=8)
    limits.check_length(5, 10**9, context_length=0)
    with pytest.raises(PromptTooLongError, match="max_tokens must be at most 3 after a prompt of 5"):
        limits.check_length(5, 4, context_length=8)


@pytest.mark.parametrize("session_id", ["a", "A-1_b.c:d", "x" * limits.MAX_SESSION_ID_CHARS])
def test_session_ids_inside(session_id: str) -> None:
    limits.check_session_id(session_id)


@pytest.mark.parametrize("session_id", ["", "a b", "a\n", "a}", "ä", "x" * (limits.MAX_SESSION_ID_CHARS + 1)])
def test_session_ids_outside(session_id: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^session_id must be"):
        limits.check_session_id(session_id)


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        limits.check_prompt([10**400], vocab_size=10, context_length=8)
    assert len(str(caught.value)) < 250
    with pytest.raises(InvalidRequestError) as caught:
        limits.check_length(5, 10**400, context_length=8)
    assert len(str(caught.value)) < 250
    assert len(limits.quoted("x" * 10_000)) <= limits.MAX_QUOTED_CHARS
    assert (limits.quoted(2**64), limits.quoted("a"), limits.quoted(None)) == (str(2**64), "'a'", "None")
