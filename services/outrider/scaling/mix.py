"""The mix of drafters that gives most tokens per cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """What a kind of drafter brings, next to the verifiers' plain work, which is 1."""

    gain: float  # more tokens when all its sessions have it; may be negative
    reach: float  # share of its sessions that one replica serves, over 0
    price: float  # of a replica, next to all verifiers together
    most: int  # replicas that load asks for

    def gain_of(self, replicas: int) -> float:
        """What so many replicas bring."""
        return self.gain * min(1.0, self.reach * replicas)


def tokens_per_cost(offers: Mapping[str, Offer], counts: Mapping[str, int]) -> float:
    """Next to that of verifiers alone."""
    tokens = 1.0 + sum(offer.gain_of(counts.get(kind, 0)) for kind, offer in offers.items())
    cost = 1.0 + sum(offer.price * counts.get(kind, 0) for kind, offer in offers.items())
    return max(0.0, tokens) / cost


def best_mix(offers: Mapping[str, Offer]) -> dict[str, int]:
    """How many of each kind give most tokens per cost; of equal ones the fewest.

    Dinkelbach's method for ratios (Management Science 13, 1967): for a given exchange rate of tokens for
    cost the kinds do not depend on each other, and the rate that the best counts give is the next one.
    It never falls, and there are finitely many counts: so it ends, at the optimum.
    """
    counts = dict.fromkeys(offers, 0)
    rate = tokens_per_cost(offers, counts)
    while True:
        better = {
            kind: max(
                range(offer.most + 1),
                key=lambda count, offer=offer: (  # type: ignore[misc]
                    offer.gain_of(count) - rate * offer.price * count,
                    -count,
                ),
            )
            for kind, offer in offers.items()
        }
        found = tokens_per_cost(offers, better)
        if found <= rate * (1 + 1e-12):
            return counts
        counts, rate = better, found
