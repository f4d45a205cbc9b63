"""Calibrated confidences: a first guess at first, then what became of a drafter's nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.trees import TokenTree
from outrider.verifying.fusion.confidence import Calibration

CONFIDENCES = st.floats(0, 1)


def single(token_id: int, *confidence: float) -> TokenTree:
    return TokenTree((token_id,), (-1,), (), confidence)


@pytest.mark.parametrize("said", [0.0, 0.07, 0.3, 0.5, 0.8, 1.0])
def test_a_new_drafter_is_believed_more_or_less(said: float) -> None:
    (believed,) = Calibration().of(single(1, said))
    assert believed == pytest.approx(said, abs=0.1)


def test_one_that_says_nothing_is_given_a_middling_chance_until_it_is_known() -> None:
    calibration = Calibration()
    (guess,) = calibration.of(single(1))
    assert 0.4 < guess < 0.6
    for _ in range(100):
        calibration.learn(single(1), [2])
    assert calibration.of(single(1))[0] < 0.1


@pytest.mark.parametrize(("said", "kept"), [(0.95, 0.2), (0.2, 0.9), (0.5, 0.5), (0.95, 1.0), (0.2, 0.0)])
def test_what_is_said_becomes_what_is_true(said: float, kept: float) -> None:
    calibration = Calibration()
    for index in range(2000):
        hit = (index % 10) < 10 * kept
        calibration.learn(single(1, said), [1 if hit else 2])
    assert calibration.of(single(1, said))[0] == pytest.approx(kept, abs=0.06)


def test_a_drafter_that_changed_is_seen_in_a_new_light() -> None:
    calibration = Calibration()
    for token_id in (1, 2):
        for _ in range(1500):
            calibration.learn(single(1, 0.9), [token_id])
    assert calibration.of(single(1, 0.9))[0] < 0.1


@pytest.mark.parametrize(
    ("token_ids", "judged"),
    [
        ((9,), {0: False, 1: False}),  # the children of what was rejected are not judged
        ((1, 9), {0: True, 1: False, 2: False}),
        ((1, 3, 5), {0: True, 1: False, 2: True, 3: True}),
        ((1,), {0: True, 1: False}),  # what came after the last token is not known
        ((), {}),
    ],
)
def test_only_nodes_whose_parent_was_accepted_say_something(
    token_ids: tuple[int, ...], judged: dict[int, bool]
) -> None:
    """Each node has a bucket of its own: 1 and 2 at the top, 3 under 1, 5 under 3."""
    said = (0.02, 0.2, 0.5, 0.95)
    tree = TokenTree((1, 2, 3, 5), (-1, -1, 0, 2), (), said)
    before, calibration = Calibration().of(tree), Calibration()
    calibration.learn(tree, token_ids)
    for node, (old, new) in enumerate(zip(before, calibration.of(tree), strict=True)):
        assert (new > old, new < old) == {None: (False, False), True: (True, False), False: (False, True)}[
            judged.get(node)
        ]


@given(st.lists(st.tuples(CONFIDENCES, st.booleans()), max_size=60), CONFIDENCES)
def test_it_stays_a_chance_whatever_it_learns(rounds: list[tuple[float, bool]], said: float) -> None:
    calibration = Calibration()
    for confidence, hit in rounds:
        calibration.learn(single(1, confidence), [1 if hit else 2])
    (believed,) = calibration.of(single(1, said))
    assert 0 < believed < 1
