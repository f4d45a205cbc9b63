"""The ranking of draft candidates: equal to the plain definition, for every path through the code."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.errors import InternalError
from outrider.core.noise import exponentials, streams
from outrider.core.params import SamplingParams
from outrider.core.ranking import NO_TOKEN, ranked_picks
from outrider.core.sampling import coupled_picks, target_probs
from tests.unit.core.test_coupled_picks import Rows, batch
from tests.unit.core.test_target_probs import parameters
from tests.unit.core.test_target_probs import rows as logit_rows


def plain(
    logits: list[float], params: SamplingParams, position: int, k: int
) -> tuple[list[int], list[float]]:
    """By the definition: sort all that may be drawn by the race, the others by logit."""
    probs = target_probs(torch.tensor([logits]), [params])[0].tolist()
    noise = exponentials(streams([(params.seed, position)]), torch.arange(len(logits))).tolist()
    finite = [token for token, logit in enumerate(logits) if logit > -math.inf]
    raced = [token for token in finite if params.temperature > 0.0 and probs[token] > 0.0]
    order = sorted(raced, key=lambda token: (noise[token] / probs[token], token))
    order += sorted(set(finite) - set(raced), key=lambda token: (-logits[token], token))
    listed = order[:k]
    best = max(logits)
    levels = [
        logits[token] - best - (params.temperature * math.log(noise[token]) if token in raced else 0.0)
        for token in listed
    ]
    shares: list[float] = []
    for level in levels:
        shares.append(min(math.exp(level), *shares[-1:], math.inf))
    others = [min(math.exp(logits[token] - best), shares[-1]) for token in order[k:]]
    total = math.fsum(shares) + math.fsum(others)
    missing = k - len(listed)
    return listed + [NO_TOKEN] * missing, [share / total for share in shares] + [0.0] * missing


def check(logits: torch.Tensor, rows: Rows, k: int) -> None:
    ids, confidences = ranked_picks(logits, rows, k)
    assert torch.equal(ids[:, 0], coupled_picks(logits, rows))
    for row, (params, position) in enumerate(rows):
        want, how_likely = plain(logits[row].tolist(), params, position, k)
        assert ids[row].tolist() == want, params
        assert confidences[row].tolist() == pytest.approx(how_likely, rel=1e-4, abs=1e-6)
        assert confidences[row].tolist() == sorted(confidences[row].tolist(), reverse=True)


@pytest.mark.parametrize("vocabulary", [1, 2, 255, 257, 1000, 4096, 20_000])
@pytest.mark.parametrize("bf16", [False, True])
def test_equals_the_definition(vocabulary: int, bf16: bool) -> None:
    for seed, k in ((0, 1), (1, 4), (2, 12)):
        logits, rows = batch(4 if vocabulary > 10_000 else 12, vocabulary, seed, bf16=bf16)
        check(logits, rows, k)


@settings(max_examples=300, deadline=None)
@given(logit_rows, parameters, st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(1, 8))
def test_equals_the_definition_on_odd_rows(
    logits: list[float], params: SamplingParams, seed: int, position: int, k: int
) -> None:
    check(torch.tensor([logits]), [(replace(params, seed=seed), position)], k)


def test_greedy_rows_rank_by_the_softmax_of_the_logits() -> None:
    logits = torch.randn(5, 3000, generator=torch.Generator().manual_seed(0)) * 4
    ids, confidences = ranked_picks(logits, [(SamplingParams(temperature=0.0), 3)] * 5, 6)
    values, want = logits.softmax(1, torch.float64).topk(6, 1)
    assert torch.equal(ids, want)
    assert torch.allclose(confidences, values, rtol=1e-5)


def test_equal_logits_rank_by_id() -> None:
    logits = torch.zeros(1, 700)
    logits[0, [690, 300, 301]] = 1.0
    ids, _ = ranked_picks(logits, [(SamplingParams(temperature=0.0), 0)], 5)
    assert ids.tolist() == [[300, 301, 690, 0, 1]]
    ids, _ = ranked_picks(logits, [(SamplingParams(top_k=1), 0)], 3)
    assert ids.tolist() == [[300, 301, 690]]


def test_a_reduced_vocabulary_races_with_the_noise_of_the_full_one() -> None:
    full, rows = batch(12, 5000, 11)
    own = torch.randperm(5000, generator=torch.Generator().manual_seed(2))[:300]
    masked = torch.full_like(full, -math.inf)
    masked[:, own] = full[:, own]
    want, how_likely = ranked_picks(masked, rows, 5)
    for columns in (own, own.sort().values):
        ids, confidences = ranked_picks(full[:, columns], rows, 5, columns)
        assert torch.equal(ids, want)
        assert torch.allclose(confidences, how_likely, rtol=1e-4)
    assert torch.equal(want[:, 0], coupled_picks(full[:, own], rows, own))


def test_a_row_does_not_depend_on_the_others() -> None:
    logits, rows = batch(16, 3000, 7)
    ids, confidences = ranked_picks(logits, rows, 4)
    for row in range(16):
        alone = ranked_picks(logits[row : row + 1], rows[row : row + 1], 4)
        assert torch.equal(alone[0][0], ids[row]) and torch.equal(alone[1][0], confidences[row])


def test_a_greedy_row_has_the_same_bits_beside_rows_that_draw() -> None:
    """Trees compare confidences, so even the last bit could choose another node."""
    logits = torch.randn(64, 5000, generator=torch.Generator().manual_seed(6)) * 4
    greedy = [(SamplingParams(temperature=0.0), row) for row in range(32)]
    drawing = [(SamplingParams(seed=row), row) for row in range(32)]
    ids, confidences = ranked_picks(logits[:32], greedy, 4)
    both_ids, both = ranked_picks(logits, greedy + drawing, 4)
    assert torch.equal(both_ids[:32], ids) and torch.equal(both[:32], confidences)
    drawn_ids, drawn = ranked_picks(logits[32:], drawing, 4)
    assert torch.equal(both_ids[32:], drawn_ids) and torch.equal(both[32:], drawn)


def test_fewer_are_the_first_of_more() -> None:
    logits, rows = batch(16, 3000, 8)
    many, _ = ranked_picks(logits, rows, 20)
    few, _ = ranked_picks(logits, rows, 3)
    assert torch.equal(few, many[:, :3])


def test_what_cannot_be_ranked() -> None:
    assert ranked_picks(torch.zeros(0, 9), [], 3)[0].shape == (0, 3)
    one = [(SamplingParams(), 0)]
    for logits in (torch.full((1, 5), -math.inf), torch.full((1, 5), math.nan)):
        with pytest.raises(InternalError):
            ranked_picks(logits, one, 2)
    for bad, k in ((torch.zeros(2, 5), 2), (torch.zeros(1, 0), 2), (torch.zeros(1, 5), 0)):
        with pytest.raises(InternalError):
            ranked_picks(bad, one, k)
