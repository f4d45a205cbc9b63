"""How often draft and target agree: the formula of coupled sampling, and the law of the real picks.

Daliri et al., arXiv 2408.07978: Pr[agree] = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) >= (1 - TV) / (1 + TV).
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outrider.core.noise import exponentials, streams
from outrider.core.params import SamplingParams
from outrider.core.sampling import coupled_picks, target_probs

ACCEPTABLE = 1e-3
PAIRS = [
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    ([0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]),
    ([0.9, 0.05, 0.05], [0.05, 0.05, 0.9]),
    ([0.4, 0.6, 0.0], [0.0, 0.5, 0.5]),
    ([0.01, 0.99], [0.02, 0.98]),
    ([0.3, 0.3, 0.4], [0.3, 0.3, 0.4]),
]


def agreement(p: list[float], q: list[float]) -> float:
    """The formula."""
    total = 0.0
    for p_i, q_i in zip(p, q, strict=True):
        if p_i > 0 and q_i > 0:
            total += 1 / math.fsum(max(p_j / p_i, q_j / q_i) for p_j, q_j in zip(p, q, strict=True))
    return total


def variation(p: list[float], q: list[float]) -> float:
    return math.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2


def race(noise: torch.Tensor, probs: list[float]) -> torch.Tensor:
    """The definition: argmin of noise / prob."""
    return (noise / torch.tensor(probs, dtype=torch.float64)).argmin(-1)


@pytest.mark.parametrize(("p", "q"), [pair for pair in PAIRS if len(pair[0]) <= 3])
def test_formula_by_enumeration(p: list[float], q: list[float]) -> None:
    """Every combination of 120 quantiles of each token's noise; the grid errs by about 1/120."""
    size = 120
    quantiles = -torch.log((torch.arange(size, dtype=torch.float64) + 0.5) / size)
    noise = torch.cartesian_prod(*[quantiles] * len(p))
    agreed = (race(noise, p) == race(noise, q)).double().mean().item()
    assert agreed == pytest.approx(agreement(p, q), abs=1.2 / size)


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_formula_by_the_exponential_race(p: list[float], q: list[float]) -> None:
    """Integrate: token i has noise e and is first in both races, so every other token's noise is beyond."""
    steps = 200_000
    u = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    e = -torch.log(u)
    total = 0.0
    for i, (p_i, q_i) in enumerate(zip(p, q, strict=True)):
        if p_i == 0 or q_i == 0:
            continue
        others = torch.ones_like(e)
        for j, (p_j, q_j) in enumerate(zip(p, q, strict=True)):
            if j != i:
                others *= torch.exp(-torch.maximum(e * p_j / p_i, e * q_j / q_i))
        total += others.mean().item()
    assert total == pytest.approx(agreement(p, q), abs=1e-4)


distributions = st.lists(st.floats(1e-6, 1.0), min_size=5, max_size=5).map(
    lambda values: [value / sum(values) for value in values]
)


@settings(max_examples=300)
@given(distributions, distributions)
def test_bounds(p: list[float], q: list[float]) -> None:
    tv = variation(p, q)
    assert (1 - tv) / (1 + tv) - 1e-12 <= agreement(p, q) <= 1 - tv + 1e-12


@pytest.mark.parametrize(("index", "pair"), list(enumerate(PAIRS)))
def test_real_noise_agrees_as_often_as_the_formula_says(
    index: int, pair: tuple[list[float], list[float]]
) -> None:
    p, q = pair
    count = 20_000
    noise = exponentials(streams([(index, t) for t in range(count)])[:, :, None], torch.arange(len(p)) * 1000)
    agreed = int((race(noise, p) == race(noise, q)).sum())
    assert stats.binomtest(agreed, count, min(1.0, agreement(p, q))).pvalue > ACCEPTABLE
    tv = variation(p, q)
    assert agreed / count > (1 - tv) / (1 + tv) - 3 / math.sqrt(count)


SETTINGS = [
    SamplingParams(seed=3),
    SamplingParams(seed=4, temperature=0.7),
    SamplingParams(seed=5, top_k=6, top_p=0.9),
    SamplingParams(seed=6, min_p=0.05, temperature=1.4),
]


def logits_of(count: int, seed: int, size: int = 12) -> torch.Tensor:
    row = torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) * 1.5
    return row.expand(count, size)


@pytest.mark.parametrize("params", SETTINGS)
def test_picks_have_the_processed_law(params: SamplingParams) -> None:
    count = 6000
    logits = logits_of(count, seed=1)
    picks = coupled_picks(logits, [(params, position) for position in range(count)])
    probs = target_probs(logits[:1], [params])[0]
    counts = torch.bincount(picks, minlength=len(probs))
    assert counts[probs == 0].sum() == 0
    kept = probs > 0
    expected = probs[kept] * count
    assert stats.chisquare(counts[kept].numpy(), expected.numpy()).pvalue > ACCEPTABLE


@pytest.mark.parametrize("params", SETTINGS)
def test_draft_and_target_picks_agree_as_often_as_the_formula_says(params: SamplingParams) -> None:
    """Through the real pick, with the target's parameters on both sides."""
    count = 5000
    target, draft = logits_of(count, seed=1), logits_of(count, seed=2) * 0.5 + logits_of(count, seed=1) * 0.5
    rows = [(params, position) for position in range(count)]
    agreed = int((coupled_picks(target, rows) == coupled_picks(draft, rows)).sum())
    p, q = (target_probs(logits[:1], [params])[0].tolist() for logits in (target, draft))
    assert stats.binomtest(agreed, count, agreement(p, q)).pvalue > ACCEPTABLE


def test_joint_law_over_three_positions() -> None:
    """Picks at neighbouring positions of one session are independent: the joint law is the product."""
    count, size = 4000, 3
    logits = torch.tensor([[0.4, 0.0, -0.5]]).expand(count, size)
    picks = [
        coupled_picks(logits, [(SamplingParams(seed=seed), position) for seed in range(count)])
        for position in (10, 11, 12)
    ]
    cells = torch.bincount(picks[0] * 9 + picks[1] * 3 + picks[2], minlength=27)
    probs = target_probs(logits[:1], [SamplingParams()])[0].tolist()
    expected = [
        math.prod(probs[token] for token in cell) * count for cell in itertools.product(range(3), repeat=3)
    ]
    assert stats.chisquare(cells.numpy(), expected).pvalue > ACCEPTABLE
