"""Log-probabilities, ranks and alternatives of single rows, against torch and against a plain count."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import InternalError
from outrider.core.params import LogprobParams, SamplingParams, StopParams
from outrider.core.sessions import SessionRecord
from outrider.core.trees import TokenTree
from outrider.engine.api import StepItem
from outrider.verifying.logprobs import prompt_rows, tell_of_known, token_logprobs
from outrider.verifying.session import Drafting, Session
from outrider.verifying.work import Work


def rows_of(count: int, vocab: int = 997, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 4


def test_values_are_torchs_log_softmax_to_the_bit():
    logits = rows_of(70)  # more than are worked on at once
    token_ids = [(37 * row) % 997 for row in range(70)]
    told = token_logprobs(logits, token_ids, 5)
    expected = torch.log_softmax(logits, dim=1)
    for row, (entry, token_id) in enumerate(zip(told, token_ids, strict=True)):
        assert entry.token_id == token_id
        assert entry.logprob == float(expected[row, token_id])
        assert entry.rank == int((expected[row] >= expected[row, token_id]).sum())
        best = sorted(range(997), key=lambda i: (-float(expected[row, i]), i))[:5]
        assert entry.top == tuple((i, float(expected[row, i])) for i in best)


@pytest.mark.parametrize("vocab", [1, 2, 15, 512, 4099])
def test_a_row_does_not_depend_on_the_others(vocab: int):
    logits = rows_of(67, vocab)
    token_ids = [row % vocab for row in range(67)]
    together = token_logprobs(logits, token_ids, 3)
    assert [token_logprobs(logits[r : r + 1], token_ids[r : r + 1], 3)[0] for r in range(67)] == together
    assert token_logprobs(logits[10:31], token_ids[10:31], 3) == together[10:31]


def test_no_alternatives_are_told_if_none_are_wanted():
    (entry,) = token_logprobs(rows_of(1), [3], 0)
    assert entry.top == () and entry.logprob < 0 and entry.rank >= 1


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, -math.inf]), min_size=2, max_size=9),
    st.integers(0, 12),
    st.data(),
)
def test_among_equals_the_lowest_ids_come_first_and_share_the_last_ones_rank(values, top, data):
    if all(value == -math.inf for value in values):
        values[0] = 0.0
    token_id = data.draw(st.integers(0, len(values) - 1))
    (entry,) = token_logprobs(torch.tensor([values]), [token_id], top)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    assert [i for i, _ in entry.top] == order[:top]
    assert entry.rank == sum(value >= values[token_id] for value in values)
    assert (entry.logprob == -math.inf) == (values[token_id] == -math.inf)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_an_error(bad: float):
    logits = rows_of(3)
    logits[1, 500] = bad
    with pytest.raises(InternalError):
        token_logprobs(logits, [0, 0, 0], 2)


class _Sequence:
    cached_len = 0
    token_ids = ()

    def __init__(self, kv_len: int) -> None:
        self.kv_len = kv_len


def session_of(
    prompt: int, wanted: LogprobParams, generated: tuple[int, ...] = (), from_token: int = 0
) -> Session:
    record = SessionRecord(
        "s", tuple(range(prompt)), SamplingParams(), StopParams(64), tokens=generated, logprobs=wanted
    )
    return Session.admitted(record, 1, Drafting(), from_token)


def work_of(session: Session, kv_len: int, count: int) -> Work:
    """A chunk of the session's tokens."""
    sequence = _Sequence(kv_len)
    tree = TokenTree.chain(session.tokens[kv_len : kv_len + count])
    return Work(session, StepItem(sequence, tree), TokenTree(), False, len(session.tokens))


@pytest.mark.parametrize("chunk", [1, 2, 3, 9, 10])
def test_every_prompt_token_but_the_first_is_told_once_whatever_the_chunks(chunk: int):
    session = session_of(10, LogprobParams(prompt_top=2))
    logits = rows_of(10)
    told = []
    start = 0
    while start < 10:
        count = min(chunk, 10 - start)
        work = work_of(session, start, count)
        tell_of_known(logits, [slice(start, start + count)], [work])
        if work.prompt_logprobs is not None:
            assert work.prompt_logprobs.first_position == session.prompt_told
            told += work.prompt_logprobs.entries
            session.prompt_told += len(work.prompt_logprobs.entries)
        start += count
    assert told == token_logprobs(logits[:9], list(range(1, 10)), 2)
    assert session.prompt_told == 10 and session.reusable is None
    assert not prompt_rows(session, 0, 10)  # run again, nothing is told again


def test_what_was_told_before_a_preemption_may_come_from_the_cache():
    session = session_of(10, LogprobParams(prompt_top=0))
    assert session.reusable == 0
    session.prompt_told = 6  # positions 1 to 5 are told, by rows 0 to 4
    assert session.reusable == 5
    assert prompt_rows(session, 0, 5) == range(5, 5)
    assert prompt_rows(session, 4, 20) == range(5, 9)


def test_prompts_are_not_told_of_without_being_asked_nor_by_who_goes_on():
    assert session_of(10, LogprobParams(top=3)).reusable is None
    assert session_of(1, LogprobParams(prompt_top=3)).reusable is None
    assert session_of(10, LogprobParams(prompt_top=3), (4,), from_token=1).reusable is None


@pytest.mark.parametrize("from_token", range(5))
@pytest.mark.parametrize("chunk", [1, 2, 3, 14])
def test_generated_tokens_that_a_session_came_with_are_told_once_whatever_the_chunks(
    chunk: int, from_token: int
) -> None:
    session = session_of(10, LogprobParams(top=2), (10, 11, 12, 13), from_token)
    assert session.reusable == (9 + from_token if from_token < 4 else None)
    logits, told = rows_of(14), []
    for start in range(0, 14, chunk):
        count = min(chunk, 14 - start)
        work = work_of(session, start, count)
        tell_of_known(logits, [slice(start, start + count)], [work])
        assert work.prompt_logprobs is None
        if work.told_again is not None:
            assert work.told_again.first_token == from_token + len(told)
            assert work.told_again.token_ids == tuple(entry.token_id for entry in work.told_again.logprobs)
            told += work.told_again.logprobs
            session.stored_told += len(work.told_again.token_ids)
    expected = token_logprobs(logits[9 + from_token : 13], range(10 + from_token, 14), 2)
    assert told == expected and not session.untold and session.reusable is None


def test_nothing_is_told_of_a_prompt_to_who_wants_nothing():
    work = work_of(session_of(4, LogprobParams(top=2)), 0, 4)
    tell_of_known(rows_of(4), [slice(0, 4)], [work])
    assert work.prompt_logprobs is None and work.failure is None


def test_logits_that_are_not_numbers_fail_their_own_session():
    asked = LogprobParams(prompt_top=0)
    works = [work_of(session_of(4, asked), 0, 4) for _ in range(3)]
    logits = rows_of(12)
    logits[5, 100] = math.nan
    tell_of_known(logits, [slice(0, 4), slice(4, 8), slice(8, 12)], works)
    assert [work.failure is None for work in works] == [True, False, True]
    assert [work.prompt_logprobs is None for work in works] == [False, True, False]
