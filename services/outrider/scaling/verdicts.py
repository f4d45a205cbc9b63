"""What each kind of drafter that runs is worth, and how many of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.scaling.mix import Offer, best_mix, tokens_per_cost
from outrider.scaling.settings import ScalingSettings
from outrider.scaling.trial import Verdict
from outrider.scaling.worth import Gains


@dataclass(frozen=True, slots=True)
class Running:
    """A kind of drafter of which replicas report."""

    replicas: int
    sessions: float  # that they hold
    each: float  # sessions that a replica is to have; 0: not known
    most: int  # replicas that load asks for


def verdicts(
    settings: ScalingSettings, gains: Gains, verifiers: int, kinds: Mapping[str, Running]
) -> dict[str, Verdict]:
    """By kind; `verifiers` is how many of them report."""
    cost = verifiers * settings.verifier.price
    offers = {
        kind: _offer(gains.by_kind.get(kind, 0.0), one, settings.of_drafter(kind).price / cost)
        for kind, one in kinds.items()
    }
    best = best_mix(offers)
    found = {}
    for kind, offer in offers.items():
        running = kinds[kind]
        count = _kept(kind, min(running.replicas, offer.most), offers, best, settings.worth.margin)
        found[kind] = Verdict(count, _reason(gains, kind, count or running.replicas, offer, running))
    return found


def _offer(gain: float, one: Running, price: float) -> Offer:
    reach = min(1.0, one.each / one.sessions) if one.each and one.sessions else 1.0
    return Offer(gain / min(1.0, reach * one.replicas), reach, price, max(1, one.most))


def _kept(kind: str, now: int, offers: Mapping[str, Offer], best: Mapping[str, int], margin: float) -> int:
    """The best number, or the one that there is `now` if that is more and costs no more than the margin."""
    if now <= best[kind]:
        return best[kind]
    as_now = tokens_per_cost(offers, {**best, kind: now})
    return now if as_now >= (1 - margin) * tokens_per_cost(offers, best) else best[kind]


def _reason(gains: Gains, kind: str, count: int, offer: Offer, one: Running) -> str:
    basis = "measured" if gains.measured else "estimated"
    return (
        f"{gains.speedup:.2f}x as fast as without drafts ({basis}; "
        f"{gains.tokens_per_round:.2f} tokens a round), "
        f"{100 * gains.by_kind.get(kind, 0.0):+.0f}% by the {one.replicas} of this kind; "
        f"{count} cost {100 * offer.price * count:+.0f}% and bring {100 * offer.gain_of(count):+.0f}%"
    )
