"""The processed distribution against a naive one, and where the two could part: ties, edges, masks."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from outrider.core import truncation
from outrider.core.errors import InternalError
from outrider.core.params import SamplingParams
from outrider.core.sampling import target_probs
from tests.unit.core import reference_sampling

# Multiples of 1/8, as bf16 has them: many ties. And any float32 of a sane size.
coarse = st.integers(-40, 40).map(lambda n: n / 8)
fine = st.floats(-30, 30, width=32, allow_nan=False)
rows = st.lists(st.one_of(coarse, fine, st.just(-math.inf)), min_size=1, max_size=40).filter(
    lambda row: max(row) > -math.inf
)
parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([0, 0, 1, 2, 3, 10, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.05, 0.5, 0.9, 0.99]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
    typical_p=st.sampled_from([1.0, 1.0, 1.0, 0.05, 0.5, 0.95]),
)


def near_an_edge(logits: list[float], params: SamplingParams) -> bool:
    """Whether rounding could move a token over the edge of top-p or min-p."""
    open_params = SamplingParams(temperature=params.temperature, top_k=params.top_k, min_p=params.min_p)
    ranked = sorted(reference_sampling.probs(logits, open_params), reverse=True)
    mass = 0.0
    for prob in ranked:
        if params.top_p < 1.0 and abs(mass - params.top_p) < 1e-9:
            return True
        if 0.0 < params.min_p < 1.0 and abs(prob - params.min_p * ranked[0]) < 1e-12 * ranked[0]:
            return True
        mass += prob
    return params.typical_p < 1.0 and near_a_typical_edge(logits, params)


def near_a_typical_edge(logits: list[float], params: SamplingParams) -> bool:
    """Whether rounding could decide about typical-p."""
    left = [p for p in reference_sampling.probs(logits, replace(params, typical_p=1.0)) if p > 0.0]
    entropy = math.fsum(-p * math.log(p) for p in left)
    nearest = sorted((abs(-math.log(p) - entropy), p) for p in left)
    mass = 0.0
    for (distance, p), (further, q) in pairwise([*nearest, (math.inf, 0.0)]):
        mass += p
        if abs(mass - params.typical_p) < 1e-9 or (further - distance < 1e-9 and p != q):
            return True
    return False


@example([0.0, 6.0, 6.0], SamplingParams(temperature=0.2, typical_p=0.5))
@settings(max_examples=300, deadline=None)
@given(rows, parameters)
def test_equals_a_naive_implementation(logits: list[float], params: SamplingParams) -> None:
    assume(params.temperature == 0.0 or not near_an_edge(logits, params))
    row = torch.tensor([logits], dtype=torch.float32)
    ours = target_probs(row, [params])[0].tolist()
    assert ours == pytest.approx(reference_sampling.probs(row[0].tolist(), params), rel=1e-11, abs=1e-15)
    assert math.fsum(ours) == pytest.approx(1.0, abs=1e-12)


def one(logits: list[float], **params: float) -> list[float]:
    values: list[float] = target_probs(torch.tensor([logits]), [SamplingParams(**params)])[0].tolist()  # type: ignore[arg-type]
    return values


def test_temperature_zero_takes_the_lowest_of_equal_ids() -> None:
    assert one([1.0, 3.0, 3.0, -math.inf], temperature=0.0) == [0.0, 1.0, 0.0, 0.0]


def test_top_k_keeps_exactly_k_of_equal_logits() -> None:
    assert one([2.0, 2.0, 2.0, 2.0], top_k=2) == [0.5, 0.5, 0.0, 0.0]
    assert one([0.0, 2.0, 0.0, 2.0, 2.0], top_k=2) == [0.0, 0.5, 0.0, 0.5, 0.0]


def test_minus_zero_and_zero_are_equal_logits() -> None:
    assert one([-0.0, 0.0, -0.0, 0.0], top_k=2) == [0.5, 0.5, 0.0, 0.0]


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    assert one([0.0, 0.0, 0.0, 0.0], top_p=0.5) == [0.5, 0.5, 0.0, 0.0]
    third = 1 / 3
    assert one([0.0, 0.0, 0.0, 0.0], top_p=0.51) == pytest.approx([third, third, third, 0.0])
    assert one([0.0, 5.0], top_p=1e-6) == [0.0, 1.0]


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    # Of four equal ones top-k leaves two; half of that mass is one token.
    assert one([0.0, 0.0, 0.0, 0.0], top_k=2, top_p=0.5) == [1.0, 0.0, 0.0, 0.0]


def test_min_p_is_relative_to_the_best_after_temperature() -> None:
    logits = [math.log(8.0), math.log(4.0), math.log(1.0)]
    kept = [prob > 0 for prob in one(logits, min_p=0.3)]
    assert kept == [True, True, False]
    # At temperature 0.5 the ratios are squared: 1, 1/4, 1/64.
    assert [prob > 0 for prob in one(logits, min_p=0.3, temperature=0.5)] == [True, False, False]
    assert one([1.0, 2.0, 2.0], min_p=1.0) == [0.0, 0.5, 0.5]


def test_typical_p_keeps_the_fewest_nearest_to_the_entropy() -> None:
    # Probabilities 1/2, 1/4, 1/8, 1/8: entropy 1.75 bits, surprises 1, 2, 3, 3 bits.
    logits = [math.log(4.0), math.log(2.0), 0.0, 0.0]
    assert one(logits, typical_p=0.2) == [0.0, 1.0, 0.0, 0.0]
    assert one(logits, typical_p=0.7) == pytest.approx([2 / 3, 1 / 3, 0.0, 0.0])
    assert one(logits, typical_p=0.8) == pytest.approx([4 / 7, 2 / 7, 1 / 7, 0.0])
    assert one(logits, typical_p=0.9) == pytest.approx([0.5, 0.25, 0.125, 0.125])


def test_typical_p_comes_after_the_other_filters() -> None:
    # Of four equal ones top-k leaves two, equally near to their entropy: the lower id comes first.
    assert one([1.0, 1.0, 1.0, 1.0], top_k=2, typical_p=0.5) == [1.0, 0.0, 0.0, 0.0]
    # The most probable token alone is left by top-p.
    assert one([math.log(4.0), math.log(2.0), 0.0, 0.0], top_p=0.4, typical_p=0.2) == [1.0, 0.0, 0.0, 0.0]


def test_typical_p_beside_unlikely_tokens() -> None:
    assert one([0.0, -2000.0, -math.inf], typical_p=0.99) == [1.0, 0.0, 0.0]
    assert one([0.0, 0.0, -30.0], typical_p=0.999999, temperature=0.01) == [0.5, 0.5, 0.0]


def test_masked_tokens_have_no_probability() -> None:
    assert one([-math.inf, 0.0, -math.inf]) == [0.0, 1.0, 0.0]
    assert one([-math.inf, 0.0, -math.inf], top_k=3, top_p=0.999999) == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_are_a_defect(value: float) -> None:
    for params in (SamplingParams(), SamplingParams(temperature=0.0)):
        with pytest.raises(InternalError, match=r"row 1 .* maximum"):
            target_probs(torch.tensor([[0.0, 1.0], [value, 0.0]]), [params, params])


def test_a_row_without_any_token_is_a_defect() -> None:
    with pytest.raises(InternalError, match="nothing can be drawn"):
        target_probs(torch.full((1, 5), -math.inf), [SamplingParams()])


def test_rows_and_parameters_must_fit() -> None:
    with pytest.raises(InternalError, match="do not fit 1 rows"):
        target_probs(torch.zeros(2, 5), [SamplingParams()])
    assert target_probs(torch.zeros(0, 5), []).shape == (0, 5)


def large(rows: int, size: int = 5000, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(rows + size)) * spread


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_large_nuclei_equal_the_naive_ones(top_p: float, spread: float) -> None:
    logits = large(1, spread=spread)
    ours = target_probs(logits, [SamplingParams(top_p=top_p)])[0].tolist()
    naive = reference_sampling.probs(logits[0].tolist(), SamplingParams(top_p=top_p))
    assert ours == pytest.approx(naive, rel=1e-11, abs=1e-15)


def test_an_approximate_total_never_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the approximate total could decide wrongly, the exact one takes its place."""
    settled: list[int] = []
    original = truncation._settle_doubts

    def spy(*args: object) -> None:
        totals = args[-1]
        assert isinstance(totals, torch.Tensor)
        before = totals.clone()
        original(*args)  # type: ignore[arg-type]
        settled.append(int((totals != before).sum()))

    monkeypatch.setattr(truncation, "_settle_doubts", spy)
    # 1024 equal tokens: the nucleus of one half ends exactly between two of them.
    logits = torch.zeros(2, 1024)
    logits[1] = large(1, 1024)[0]
    probs = target_probs(logits, [SamplingParams(top_p=0.5)] * 2)
    assert (probs[0] > 0).nonzero()[:, 0].tolist() == list(range(512))
    assert settled == [0, 0]  # equal tokens have an exact approximate total too
    # A mass that is inexact in the approximate sum only: weights of 1 and many of the same tiny logit.
    logits = torch.full((1, 4096), -1.0)
    logits[0, :2] = 0.0
    half = 2.0 / (2.0 + 4094 * math.exp(-1.0))
    kept = int((target_probs(logits, [SamplingParams(top_p=half)])[0] > 0).sum())
    assert kept in (2, 3)
    assert settled[-1] == 1
