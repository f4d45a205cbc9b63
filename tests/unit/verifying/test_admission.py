"""What a request's edits and log-probabilities become in the session's record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.config.schema import VerifierConfig
from outrider.core.errors import InvalidRequestError
from outrider.core.models import ModelInfo
from outrider.core.params import LogitEdits, LogprobParams, SamplingParams
from outrider.verifying.admission import Admission
from outrider.wire.messages import SessionRequest, StopRequest

ADMISSION = Admission(
    model=ModelInfo("m", vocab_size=50, context_length=32),
    eos_token_ids=frozenset({2, 49}),
    pool_tokens=1000,
    config=VerifierConfig(),
    drafters=(),
)
REQUEST = SessionRequest("s", (1, 3), SamplingParams(), StopRequest(10, frozenset({7})))


def editing(edits: LogitEdits, **changes: object) -> SessionRequest:
    return replace(REQUEST, sampling=SamplingParams(edits=edits), **changes)  # type: ignore[arg-type]


def test_min_tokens_keeps_all_end_tokens_away() -> None:
    record = ADMISSION.record(editing(LogitEdits(min_tokens=3, end_token_ids=(5,))))
    assert record.sampling.edits == LogitEdits(min_tokens=3, end_token_ids=(2, 7, 49))
    ignoring = StopRequest(10, frozenset({7}), ignore_eos=True)
    record = ADMISSION.record(editing(LogitEdits(min_tokens=3), stop=ignoring))
    assert record.sampling.edits.end_token_ids == (7,)


def test_without_min_tokens_there_are_no_end_tokens_to_keep_away() -> None:
    assert ADMISSION.record(editing(LogitEdits(end_token_ids=(5,)))).sampling.edits == LogitEdits()


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (editing(LogitEdits(min_tokens=11)), "min_tokens"),
        (editing(LogitEdits(min_tokens=31), stop=StopRequest()), "min_tokens"),
        (editing(LogitEdits(allowed_token_ids=(50,))), "allowed_token_ids"),
        (editing(LogitEdits(logit_bias=((50, 1.0),))), "logit_bias"),
        (editing(LogitEdits(bad_words=((1, 50),))), "bad_words"),
        (replace(REQUEST, logprobs=LogprobParams(top=21)), "logprobs"),
    ],
)
def test_refusals_name_their_field(request_: SessionRequest, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field} must") as caught:
        ADMISSION.record(request_)
    assert caught.value.field == field


def test_the_last_token_may_be_the_first_end() -> None:
    assert ADMISSION.record(editing(LogitEdits(min_tokens=10))).stop.max_tokens == 10
    assert ADMISSION.record(editing(LogitEdits(min_tokens=30), stop=StopRequest())).stop.max_tokens == 30


def test_the_record_says_which_logprobs_are_told() -> None:
    asked = LogprobParams(top=0, prompt_top=3)
    assert ADMISSION.record(replace(REQUEST, logprobs=asked)).logprobs == asked
