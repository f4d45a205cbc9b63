"""Edits of logits, bit for bit as a plain implementation has them, whatever else is in the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.editing import LogitRow, edit_logits, is_edited
from outrider.core.errors import InternalError
from outrider.core.history import TokenHistory
from outrider.core.logit_table import Columns
from outrider.core.params import Grammar, GrammarKind, LogitEdits, SamplingParams
from tests.unit.core.reference_edits import edited

VOCABULARY = 70
ids = st.integers(0, VOCABULARY - 1)
few = st.integers(0, 4)  # so that ids meet
words = st.lists(st.one_of(few, few, ids), min_size=1, max_size=3).map(tuple)
penalties = st.sampled_from([0.0, 0.0, 0.1, -2.0, 1.7, 2.0])
all_edits = st.builds(
    LogitEdits,
    allowed_token_ids=st.one_of(st.just(()), st.lists(ids, max_size=30, unique=True).map(tuple)),
    bad_words=st.lists(words, max_size=4).map(tuple),
    min_tokens=st.sampled_from([0, 0, 2, 5]),
    end_token_ids=st.lists(ids, max_size=3, unique=True).map(lambda found: tuple(sorted(found))),
    logit_bias=st.dictionaries(ids, st.sampled_from([-100.0, -0.3, 5.5, 100.0]), max_size=5).map(
        lambda bias: tuple(bias.items())
    ),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.5, 2.0]),
    frequency_penalty=penalties,
    presence_penalty=penalties,
)
texts = st.lists(st.one_of(few, ids), max_size=12)
masks = st.one_of(st.none(), st.sets(ids, max_size=VOCABULARY))


def mask_of(allowed: set[int] | None, words: int = -(-VOCABULARY // 32)) -> torch.Tensor | None:
    if allowed is None:
        return None
    values = [sum(1 << bit for bit in range(32) if 32 * word + bit in allowed) for word in range(words)]
    return torch.tensor([value - (1 << 32) if value >> 31 else value for value in values], dtype=torch.int32)


@st.composite
def sessions(draw: st.DrawFn) -> dict[str, Any]:
    """A session and its rows: draft tokens above each, and masks."""
    rows = draw(st.lists(st.tuples(st.lists(st.one_of(few, ids), max_size=4), masks), min_size=1, max_size=4))
    return {
        "edits": draw(all_edits),
        "prompt": draw(texts),
        "output": draw(texts),
        "cut": draw(st.integers(0, 24)),
        "rows": rows,
    }


def history_of(prompt: Sequence[int], output: Sequence[int], *cuts: int) -> TokenHistory:
    """A history that learnt its tokens in several parts."""
    history = TokenHistory(len(prompt))
    tokens = [*prompt, *output]
    for cut in (*cuts, len(tokens)):
        if cut >= len(history.output) + len(prompt):
            history.keep_up(tokens[:cut])
    return history


def random_logits(rows: int, columns: int, seed: int) -> torch.Tensor:
    logits = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 4
    return logits.masked_fill_(logits.abs() < 0.2, 0.0).masked_fill_(logits > 9, -math.inf)


def rows_of(wanted: Sequence[dict[str, Any]]) -> tuple[list[LogitRow | None], list[Any]]:
    rows: list[LogitRow | None] = [None]
    references: list[Any] = [None]
    for one in wanted:
        history = history_of(one["prompt"], one["output"], one["cut"])
        sampling = SamplingParams(edits=one["edits"])
        for above, allowed in one["rows"]:
            rows.append(LogitRow(sampling, history, above, mask_of(allowed)))
            references.append((one["edits"], one["prompt"], [*one["output"], *above], allowed))
    return rows, references


@settings(max_examples=300, deadline=None)
@given(st.lists(sessions(), min_size=1, max_size=4), st.integers(0, 1000))
def test_each_row_equals_a_plain_implementation(wanted: list[dict[str, Any]], seed: int) -> None:
    rows, references = rows_of(wanted)
    logits = random_logits(len(rows), VOCABULARY, seed)
    want = [
        row if reference is None else edited(row, *reference)
        for row, reference in zip(logits.tolist(), references, strict=True)
    ]
    edit_logits(logits, rows)
    assert torch.equal(logits, torch.tensor(want))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(sessions(), min_size=1, max_size=3),
    st.lists(ids, min_size=1, max_size=VOCABULARY, unique=True),
    st.integers(0, 1000),
)
def test_columns_of_a_reduced_vocabulary(wanted: list[dict[str, Any]], columns: list[int], seed: int) -> None:
    rows, _ = rows_of(wanted)
    whole = random_logits(len(rows), VOCABULARY, seed)
    kept = torch.tensor(columns)
    reduced = whole[:, kept].contiguous()
    edit_logits(whole, rows)
    edit_logits(reduced, rows, Columns.from_ids(kept))
    assert torch.equal(reduced, whole[:, kept])


@settings(max_examples=100, deadline=None)
@given(st.lists(sessions(), min_size=1, max_size=3), st.integers(1, VOCABULARY - 1), st.integers(0, 1000))
def test_ids_past_a_smaller_vocabulary_are_passed_over(
    wanted: list[dict[str, Any]], size: int, seed: int
) -> None:
    rows, _ = rows_of(wanted)
    whole = random_logits(len(rows), VOCABULARY, seed)
    smaller = whole[:, :size].contiguous()
    edit_logits(whole, rows)
    edit_logits(smaller, rows)
    assert torch.equal(smaller, whole[:, :size])


@settings(max_examples=50, deadline=None)
@given(texts, texts, st.lists(st.integers(0, 24), max_size=5))
def test_a_history_may_be_kept_up_in_any_parts(prompt: list[int], output: list[int], cuts: list[int]) -> None:
    history = history_of(prompt, output, *sorted(cuts))
    assert history.output == output
    assert history.generated == len(output)
    assert set(history.seen.ids.tolist()) == {*prompt, *output}
    counts = dict(zip(history.counted.ids.tolist(), history.counted.counts.tolist(), strict=True))
    assert counts == {token: output.count(token) for token in set(output)}


def test_a_history_of_many_ids() -> None:
    history = TokenHistory(500)
    history.keep_up([*range(500), *range(250, 1000), *range(900, 1000)])
    assert sorted(history.seen.ids.tolist()) == list(range(1000))
    assert history.counted.counts.sum() == 850
    assert history.counted.counts[history.counted.places[950]] == 2


def alone(
    edits: LogitEdits, output: Sequence[int] = (), prompt: Sequence[int] = (), above: Sequence[int] = ()
) -> list[float]:
    """A row of ones and its edit."""
    logits = torch.ones(1, 6)
    edit_logits(logits, [LogitRow(SamplingParams(edits=edits), history_of(prompt, output), above)])
    values: list[float] = logits[0].tolist()
    return values


BANNED = -math.inf


def test_repetition_counts_the_prompt_and_divides_or_multiplies() -> None:
    edits = LogitEdits(repetition_penalty=2.0)
    assert alone(edits, prompt=[1], output=[2], above=[3]) == [1.0, 0.5, 0.5, 0.5, 1.0, 1.0]
    negative = LogitEdits(repetition_penalty=2.0, logit_bias=((1, -2.0), (0, -1.0)))
    assert alone(negative, prompt=[1, 0]) == [0.0, -2.0, 1.0, 1.0, 1.0, 1.0]


def test_frequency_and_presence_count_the_output_only() -> None:
    assert alone(LogitEdits(frequency_penalty=0.5), [1, 1], [0, 2], [1, 2]) == [1.0, -0.5, 0.5, 1.0, 1.0, 1.0]
    assert alone(LogitEdits(presence_penalty=0.5), [1, 1], [0, 2], [1, 2]) == [1.0, 0.5, 0.5, 1.0, 1.0, 1.0]
    assert alone(LogitEdits(presence_penalty=-1.0), [1], [0]) == [1.0, 2.0, 1.0, 1.0, 1.0, 1.0]


def test_bad_words_are_banned_after_the_rest_of_them_in_the_output() -> None:
    edits = LogitEdits(bad_words=((0,), (2, 3), (2, 2, 4)))
    assert alone(edits)[:5] == [BANNED, 1.0, 1.0, 1.0, 1.0]
    assert alone(edits, output=[2])[:5] == [BANNED, 1.0, 1.0, BANNED, 1.0]
    assert alone(edits, output=[2, 2])[:5] == [BANNED, 1.0, 1.0, BANNED, BANNED]
    assert alone(edits, output=[2], above=[2])[:5] == [BANNED, 1.0, 1.0, BANNED, BANNED]
    assert alone(edits, output=[2, 2], above=[1])[:5] == [BANNED, 1.0, 1.0, 1.0, 1.0]
    assert alone(edits, prompt=[2], output=[2])[:5] == [BANNED, 1.0, 1.0, BANNED, 1.0]  # not in the prompt
    assert alone(edits, prompt=[2, 2])[:5] == [BANNED, 1.0, 1.0, 1.0, 1.0]


def test_min_tokens_count_the_draft_tokens_above() -> None:
    edits = LogitEdits(min_tokens=3, end_token_ids=(1, 5))
    assert alone(edits, output=[0, 0]) == [1.0, BANNED, 1.0, 1.0, 1.0, BANNED]
    assert alone(edits, output=[0], above=[0]) == [1.0, BANNED, 1.0, 1.0, 1.0, BANNED]
    assert alone(edits, output=[0, 0], above=[0]) == [1.0] * 6
    assert alone(edits, prompt=[0] * 5) == [1.0, BANNED, 1.0, 1.0, 1.0, BANNED]


def test_what_is_banned_stays_banned() -> None:
    """A bias does not bring back what a mask excludes, nor does a negative penalty."""
    edits = LogitEdits(
        allowed_token_ids=(1, 2),
        bad_words=((2,),),
        logit_bias=((0, 100.0), (2, 100.0)),
        frequency_penalty=-2.0,
        presence_penalty=-2.0,
        repetition_penalty=0.5,
    )
    assert alone(edits, output=[0, 2, 2]) == [BANNED, 1.0, BANNED, BANNED, BANNED, BANNED]


def test_a_mask_allows_its_bits_and_nothing_past_its_end() -> None:
    logits = torch.zeros(1, 40)
    row = LogitRow(SamplingParams(), TokenHistory(0), (), mask_of({0, 31}, words=1))
    edit_logits(logits, [row])
    assert (logits[0] == 0.0).nonzero()[:, 0].tolist() == [0, 31]


def test_masks_of_several_lengths() -> None:
    logits = torch.zeros(2, 70)
    shorter, longer = mask_of({1, 30}, words=1), mask_of({1, 69}, words=3)
    rows = [LogitRow(SamplingParams(), TokenHistory(0), (), mask) for mask in (shorter, longer)]
    edit_logits(logits, rows)
    assert [(row == 0.0).nonzero()[:, 0].tolist() for row in logits] == [[1, 30], [1, 69]]


def test_all_of_a_row_may_be_excluded() -> None:
    assert alone(LogitEdits(allowed_token_ids=(1,), bad_words=((1,),))) == [BANNED] * 6


def test_which_parameters_edit() -> None:
    assert not is_edited(SamplingParams(temperature=0.3, top_k=4))
    assert not is_edited(SamplingParams(edits=LogitEdits(end_token_ids=(2,))))
    for edits in (
        LogitEdits(min_tokens=1),
        LogitEdits(allowed_token_ids=(0,)),
        LogitEdits(grammar=Grammar(GrammarKind.JSON_OBJECT)),
        LogitEdits(presence_penalty=-0.1),
    ):
        assert is_edited(SamplingParams(edits=edits))


def test_what_does_not_fit_is_refused() -> None:
    row = LogitRow(SamplingParams(), TokenHistory(0))
    with pytest.raises(InternalError, match="do not fit 1 rows"):
        edit_logits(torch.zeros(2, 5), [row])
    with pytest.raises(InternalError, match="do not fit 5 rows"):
        edit_logits(torch.zeros(2, 5).t(), [row] * 5)


def test_edits_of_one_call_in_inference_mode() -> None:
    """The engine's logits are inference tensors, which may be changed in inference mode only."""
    with torch.inference_mode():
        logits = torch.ones(1, 6)
    edits = LogitEdits(logit_bias=((1, 1.0),))
    edit_logits(logits, [LogitRow(SamplingParams(edits=edits), TokenHistory(0))])
    assert logits[0].tolist() == [1.0, 2.0, 1.0, 1.0, 1.0, 1.0]
