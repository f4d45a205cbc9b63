"""What speculation brings: how much faster sessions are with each kind of drafter.

While a session runs, its verifier spends a place on it, whatever that place costs. So the speed of a session,
tokens per second that it runs, is what a verifier's money buys. It is compared with the speed without
drafts at about the same number of sessions per verifier, as measured when there were none. Where that was
not measured, a plain round is taken to last as long as a round's forward: tokens per round, times the share
of time that verifiers spend in forwards. (The rest of it they wait for drafts, mostly.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from outrider.scaling.counting import DrafterTotals, VerifierTotals
from outrider.scaling.settings import WorthSettings

PLAIN_SHARE = 0.98
"""Of rounds without drafts, from which on a speed counts as one without."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A speed without drafts."""

    speed: float  # tokens per second of a running session
    at: float  # when it was measured


@dataclass(frozen=True, slots=True)
class Gains:
    """What drafts bring, next to none."""

    speedup: float
    tokens_per_round: float
    measured: bool  # the speed without drafts was
    by_kind: Mapping[str, float]  # parts of speedup - 1


def crowding(totals: VerifierTotals) -> int | None:
    """Running sessions per verifier that has any, on a scale of half doublings; None: nobody ran."""
    if not totals.busy_s or not totals.running_s:
        return None
    return round(2 * math.log2(totals.running_s / totals.busy_s))


def with_baseline(
    settings: WorthSettings, baselines: Mapping[int, Baseline], totals: VerifierTotals, now: float
) -> Mapping[int, Baseline]:
    """The known speeds without drafts, with what was just measured, if drafts were not used."""
    step = crowding(totals)
    plain = totals.plain_rounds >= PLAIN_SHARE * totals.rounds
    if step is None or not plain or totals.rounds < settings.min_rounds:
        return baselines
    return {**baselines, step: Baseline(totals.tokens / totals.running_s, now)}


def gains_of(
    settings: WorthSettings,
    baselines: Mapping[int, Baseline],
    totals: VerifierTotals,
    drafters: Mapping[str, DrafterTotals],
    now: float,
) -> Gains | None:
    """What each kind brings; None: there is too little to tell.

    What drafts add in tokens is credited to kinds by tokens accepted, what they take in time by rounds that
    asked them: so a kind that is asked in vain is charged for it.
    """
    step = crowding(totals)
    if step is None or totals.rounds < settings.min_rounds:
        return None
    per_round = totals.tokens / totals.rounds
    baseline = baselines.get(step)
    known = baseline is not None and now - baseline.at < settings.baseline_s and baseline.speed > 0
    if baseline is not None and known:
        speedup = totals.tokens / totals.running_s / baseline.speed
    else:
        speedup = per_round * min(1.0, totals.step_s / totals.busy_s)
    slowdown = speedup / per_round  # of a round, by drafts: tokens per round without them are 1
    accepted = sum(one.accepted for one in drafters.values())
    asked = sum(one.asked for one in drafters.values())
    by_kind = {
        kind: slowdown * (per_round - 1) * _share(one.accepted, accepted)
        - (1 - slowdown) * _share(one.asked, asked)
        for kind, one in drafters.items()
    }
    return Gains(speedup, per_round, known, by_kind)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
