"""What drafts bring."""

from __future__ import annotations

import pytest

from outrider.scaling.counting import DrafterTotals, VerifierTotals
from outrider.scaling.settings import ScalingSettings, WorthSettings
from outrider.scaling.verdicts import Running, verdicts
from outrider.scaling.worth import Baseline, Gains, crowding, gains_of, with_baseline

SETTINGS = WorthSettings(min_rounds=100, baseline_s=1000)
ONE = {"eagle": DrafterTotals(asked=1000, accepted=1000)}


def totals(
    *, rounds: float = 1000, plain: float = 0, tokens: float = 2000, running_s: float = 80, step_s: float = 8
) -> VerifierTotals:
    """Ten seconds of one verifier."""
    return VerifierTotals(
        seconds=10,
        replica_s=10,
        busy_s=10,
        running_s=running_s,
        rounds=rounds,
        plain_rounds=plain,
        tokens=tokens,
        step_s=step_s,
    )


def test_without_a_baseline_it_is_tokens_per_round_by_the_share_of_forwards() -> None:
    gains = gains_of(SETTINGS, {}, totals(), ONE, now=0)
    assert gains == Gains(1.6, 2.0, measured=False, by_kind={"eagle": pytest.approx(0.6)})


def test_with_one_it_is_the_ratio_of_speeds() -> None:
    # Eight sessions got 2000 tokens in ten seconds, 25 a second each; without drafts it would be 20.
    gains = gains_of(SETTINGS, {crowding(totals()) or 0: Baseline(20.0, at=0)}, totals(), ONE, now=999)
    assert gains == Gains(1.25, 2.0, measured=True, by_kind={"eagle": pytest.approx(0.25)})


@pytest.mark.parametrize(
    ("baselines", "now"),
    [
        pytest.param({6: Baseline(20.0, at=0)}, 1000, id="too old"),
        pytest.param({2: Baseline(20.0, at=0)}, 1, id="at another number of sessions"),
        pytest.param({6: Baseline(0.0, at=0)}, 1, id="nothing went on then"),
    ],
)
def test_a_baseline_that_does_not_fit_is_left_out(baselines: dict[int, Baseline], now: float) -> None:
    gains = gains_of(SETTINGS, baselines, totals(), ONE, now)
    assert gains is not None
    assert not gains.measured


@pytest.mark.parametrize(
    "few",
    [
        pytest.param(totals(rounds=99, tokens=150), id="too few rounds"),
        pytest.param(totals(running_s=0), id="nobody ran"),
        pytest.param(VerifierTotals(), id="no time at all"),
    ],
)
def test_too_little_is_told_as_such(few: VerifierTotals) -> None:
    assert gains_of(SETTINGS, {}, few, ONE, now=0) is None


def test_a_kind_that_is_asked_in_vain_is_charged_for_it() -> None:
    kinds = {"eagle": DrafterTotals(asked=1000, accepted=1000), "useless": DrafterTotals(asked=1000)}
    gains = gains_of(SETTINGS, {}, totals(step_s=8), kinds, now=0)
    assert gains is not None
    assert gains.by_kind == {"eagle": pytest.approx(0.7), "useless": pytest.approx(-0.1)}
    assert sum(gains.by_kind.values()) == pytest.approx(gains.speedup - 1)


def test_a_kind_that_nobody_asks_brings_nothing() -> None:
    gains = gains_of(SETTINGS, {}, totals(), ONE | {"unasked": DrafterTotals()}, now=0)
    assert gains is not None
    assert gains.by_kind["unasked"] == 0


def test_plain_work_gives_a_baseline() -> None:
    plain = totals(plain=990, tokens=1010)
    assert with_baseline(SETTINGS, {}, plain, now=7) == {6: Baseline(1010 / 80, 7)}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(totals(plain=500), id="half of it with drafts"),
        pytest.param(totals(rounds=99, plain=99), id="too little"),
        pytest.param(totals(plain=1000, running_s=0), id="nobody ran"),
    ],
)
def test_other_work_gives_none(other: VerifierTotals) -> None:
    assert with_baseline(SETTINGS, {}, other, now=7) == {}


PRICES = ScalingSettings.model_validate({"verifier": {"price": 1.0}, "drafter": {"price": 0.3}})


def gains(**by_kind: float) -> Gains:
    return Gains(1 + sum(by_kind.values()), 2.0, measured=True, by_kind=by_kind)


@pytest.mark.parametrize(
    ("gain", "verifiers", "running", "count"),
    [
        pytest.param(0.5, 1, Running(1, 8, 10, 1), 1, id="brings more than it costs"),
        pytest.param(0.1, 1, Running(1, 8, 10, 1), 0, id="brings less"),
        pytest.param(0.1, 4, Running(1, 8, 10, 1), 1, id="brings less, but to four verifiers"),
        pytest.param(0.28, 1, Running(1, 8, 10, 1), 1, id="a little less: within the margin"),
        pytest.param(
            0.5, 1, Running(1, 20, 10, 2), 2, id="reaches half the sessions: twice as many bring twice that"
        ),
        pytest.param(0.6, 1, Running(3, 30, 10, 3), 0, id="three bring less than three cost"),
        pytest.param(-0.2, 1, Running(1, 8, 10, 1), 0, id="is in the way"),
        pytest.param(0.5, 1, Running(1, 0, 0, 1), 1, id="what it can hold is not known"),
    ],
)
def test_verdicts(gain: float, verifiers: int, running: Running, count: int) -> None:
    found = verdicts(PRICES, gains(eagle=gain), verifiers, {"eagle": running})["eagle"]
    assert found.count == count
    assert "tokens a round" in found.reason


def test_the_useless_one_of_two_is_found() -> None:
    found = verdicts(
        PRICES,
        gains(eagle=0.6, lookup=0.01),
        1,
        {"eagle": Running(1, 8, 10, 1), "lookup": Running(1, 8, 10, 1)},
    )
    assert {kind: one.count for kind, one in found.items()} == {"eagle": 1, "lookup": 0}
