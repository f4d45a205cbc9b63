"""The best mix is the best of all mixes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.scaling.mix import Offer, best_mix, tokens_per_cost


@pytest.mark.parametrize(
    ("offers", "counts"),
    [
        pytest.param({}, {}, id="no drafters"),
        pytest.param({"a": Offer(1.0, 1.0, 0.2, 1)}, {"a": 1}, id="twice the tokens for a fifth more"),
        pytest.param({"a": Offer(0.1, 1.0, 0.2, 1)}, {"a": 0}, id="a tenth more tokens for a fifth more"),
        pytest.param({"a": Offer(-0.3, 1.0, 0.0, 3)}, {"a": 0}, id="free, but in the way"),
        pytest.param({"a": Offer(1.0, 0.25, 0.1, 9)}, {"a": 4}, id="as many as reach all sessions, no more"),
        pytest.param(
            {"a": Offer(1.0, 0.3, 0.2, 4)}, {"a": 3}, id="the last one, for a tenth of them, does not pay"
        ),
        pytest.param(
            {"good": Offer(0.8, 1.0, 0.2, 1), "bad": Offer(0.05, 1.0, 0.2, 1)},
            {"good": 1, "bad": 0},
            id="one of two",
        ),
        pytest.param(
            {"good": Offer(0.8, 1.0, 0.1, 1), "fair": Offer(0.3, 1.0, 0.1, 1)},
            {"good": 1, "fair": 1},
            id="both",
        ),
    ],
)
def test_cases(offers: dict[str, Offer], counts: dict[str, int]) -> None:
    assert best_mix(offers) == counts


offer = st.builds(Offer, st.floats(-0.5, 3), st.floats(0.05, 1), st.floats(0, 2), st.integers(0, 4))


@given(st.dictionaries(st.sampled_from("abc"), offer, max_size=3))
def test_no_other_mix_gives_more(offers: dict[str, Offer]) -> None:
    best = tokens_per_cost(offers, best_mix(offers))
    for counts in itertools.product(*(range(one.most + 1) for one in offers.values())):
        assert tokens_per_cost(offers, dict(zip(offers, counts, strict=True))) <= best * (1 + 1e-9)


@given(st.dictionaries(st.sampled_from("abc"), offer, max_size=3), st.floats(1.1, 10))
def test_dearer_drafters_are_never_more(offers: dict[str, Offer], factor: float) -> None:
    for kind, one in offers.items():
        alone = {kind: one}
        dearer = {kind: Offer(one.gain, one.reach, one.price * factor, one.most)}
        assert best_mix(dearer)[kind] <= best_mix(alone)[kind]
