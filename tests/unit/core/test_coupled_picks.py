"""The coupled pick: equal to the plain definition, for every path through the code, in any batch."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.errors import InternalError
from outrider.core.params import SamplingParams
from outrider.core.sampling import coupled_picks, target_probs
from tests.unit.core import reference_sampling
from tests.unit.core.test_target_probs import parameters
from tests.unit.core.test_target_probs import rows as logit_rows

Rows = list[tuple[SamplingParams, int]]

SETTINGS = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=2.5),
    SamplingParams(top_k=50),
    SamplingParams(top_k=700),
    SamplingParams(top_k=1),
    SamplingParams(top_p=0.95),
    SamplingParams(top_p=0.3, temperature=1.3),
    SamplingParams(min_p=0.05),
    SamplingParams(top_k=40, top_p=0.8, min_p=0.01, temperature=0.8),
    SamplingParams(typical_p=0.2),
    SamplingParams(top_p=0.95, typical_p=0.5),
    SamplingParams(top_k=40, typical_p=0.9, temperature=1.2),
]


def batch(size: int, vocabulary: int, seed: int, *, bf16: bool = False) -> tuple[torch.Tensor, Rows]:
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    spread = torch.tensor([draw.choice([0.1, 1.0, 3.0, 8.0]) for _ in range(size)])
    logits = torch.randn(size, vocabulary, generator=generator) * spread[:, None]
    rows: Rows = []
    for _ in range(size):
        own = draw.choice(SETTINGS)
        params = replace(own, seed=draw.getrandbits(64))
        rows.append((params, draw.randrange(100_000)))
    return (logits.to(torch.bfloat16).float() if bf16 else logits), rows


def plain_picks(logits: torch.Tensor, rows: Rows) -> list[int]:
    probs = target_probs(logits, [params for params, _ in rows])
    return [
        reference_sampling.pick(prob.tolist(), params.seed, position)
        for prob, (params, position) in zip(probs, rows, strict=True)
    ]


@pytest.mark.parametrize("vocabulary", [1, 2, 255, 256, 257, 1000, 4096, 49152])
@pytest.mark.parametrize("bf16", [False, True])
def test_equals_the_definition(vocabulary: int, bf16: bool) -> None:
    for seed in range(3):
        logits, rows = batch(6 if vocabulary > 10_000 else 12, vocabulary, seed, bf16=bf16)
        assert coupled_picks(logits, rows).tolist() == plain_picks(logits, rows)


@settings(max_examples=200, deadline=None)
@given(logit_rows, parameters, st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_equals_the_definition_on_odd_rows(
    logits: list[float], params: SamplingParams, seed: int, position: int
) -> None:
    params = replace(params, seed=seed)
    row = torch.tensor([logits])
    assert coupled_picks(row, [(params, position)]).tolist() == plain_picks(row, [(params, position)])


@pytest.mark.parametrize("vocabulary", [50, 1000, 49152])
def test_a_row_does_not_depend_on_the_others(vocabulary: int) -> None:
    logits, rows = batch(12, vocabulary, 7)
    together = coupled_picks(logits, rows)
    for index in range(12):
        assert coupled_picks(logits[index : index + 1], rows[index : index + 1])[0] == together[index]
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    shuffled = coupled_picks(logits[order], [rows[index] for index in order.tolist()])
    assert torch.equal(shuffled, together[order])


def test_probs_do_not_depend_on_the_other_rows() -> None:
    logits, rows = batch(10, 3000, 9)
    params = [own for own, _ in rows]
    together = target_probs(logits, params)
    for index in range(10):
        assert torch.equal(
            target_probs(logits[index : index + 1], params[index : index + 1])[0], together[index]
        )


def test_greedy_is_argmax_with_ties_to_the_lowest_id() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, [300, 301, 777]] = 2.0
    assert coupled_picks(logits, [(SamplingParams(temperature=0.0), 5)]).tolist() == [300]
    assert coupled_picks(logits, [(SamplingParams(top_k=1, seed=9), 5)]).tolist() == [300]


def test_masked_tokens_are_never_picked() -> None:
    logits = torch.full((200, 300), -math.inf)
    logits[:, 150:160] = torch.randn(200, 10, generator=torch.Generator().manual_seed(0))
    for base in SETTINGS:
        picks = coupled_picks(logits, [(base, position) for position in range(200)])
        assert ((picks >= 150) & (picks < 160)).all()


def test_reduced_vocabulary_races_with_the_noise_of_the_full_one() -> None:
    """A draft over some of the ids picks as if the others had no probability; column order does not count."""
    full, rows = batch(10, 2000, 11)
    ids = torch.randperm(2000, generator=torch.Generator().manual_seed(2))[:300]
    masked = torch.full_like(full, -math.inf)
    masked[:, ids] = full[:, ids]
    expected = coupled_picks(masked, rows)
    assert torch.equal(coupled_picks(full[:, ids], rows, ids), expected)
    ascending = ids.sort().values
    assert torch.equal(coupled_picks(full[:, ascending], rows, ascending), expected)


def test_reduced_vocabulary_breaks_ties_by_id_not_by_column() -> None:
    ids = torch.tensor([9, 3, 5])
    greedy = [(SamplingParams(temperature=0.0), 0)]
    assert coupled_picks(torch.zeros(1, 3), greedy, ids).tolist() == [3]


def test_a_padded_vocabulary_changes_nothing() -> None:
    logits, rows = batch(8, 500, 13)
    padded = torch.cat((logits, torch.full((8, 77), -math.inf)), 1)
    assert torch.equal(coupled_picks(logits, rows), coupled_picks(padded, rows))


def test_arguments_are_left_alone() -> None:
    logits, rows = batch(11, 640, 17)
    before = logits.clone()
    coupled_picks(logits, rows)
    target_probs(logits, [params for params, _ in rows])
    assert torch.equal(logits, before)


def test_no_rows() -> None:
    picks = coupled_picks(torch.zeros(0, 10), [])
    assert picks.shape == (0,)
    assert picks.dtype == torch.int64


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_broken_logits_are_a_defect(value: float) -> None:
    logits = torch.full((2, 300), value)
    logits[0] = 0.0
    for params in SETTINGS:
        with pytest.raises(InternalError, match="row 1"):
            coupled_picks(logits, [(params, 0), (params, 0)])


def test_rows_must_fit_logits() -> None:
    with pytest.raises(InternalError, match="do not fit 2 rows"):
        coupled_picks(torch.zeros(1, 10), [(SamplingParams(), 0), (SamplingParams(), 1)])
    with pytest.raises(InternalError, match="do not fit"):
        coupled_picks(torch.zeros(1, 0), [(SamplingParams(), 0)])


def test_threads_do_not_matter() -> None:
    logits, rows = batch(11, 49152, 19)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(coupled_picks(logits, rows).tolist())
    finally:
        torch.set_num_threads(threads)
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("reduced", [False, True])
def test_greedy_rows_alone_pick_what_they_pick_beside_others(reduced: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randint(0, 4, (5, 300), generator=generator).float()  # full of ties
    logits[1, :200] = float("-inf")
    ids = torch.randperm(1000, generator=generator)[:300] if reduced else None
    greedy = [(SamplingParams(temperature=0.0), position) for position in range(4)]
    mixed = coupled_picks(logits, [*greedy, (SamplingParams(temperature=1.0), 4)], ids)
    alone = coupled_picks(logits[:4], greedy, ids)
    assert alone.tolist() == mixed.tolist()[:4]
