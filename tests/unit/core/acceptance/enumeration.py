"""Exact integration over uniform random numbers, for code that only compares them.

`Unknown` stands for a number that is uniform on an interval. A comparison with a number inside the interval
is true with a probability that the interval says. `law_of` runs the code once for each combination of
outcomes; a comparison narrows the interval, so a number that is used twice stays one and the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

Result = TypeVar("Result", bound=Hashable)


class World:
    """One run: what was decided so far, and how probable that is."""

    def __init__(self, script: tuple[bool, ...]) -> None:
        self.script = script
        self.decisions: list[bool] = []
        self.probability = 1.0
        self._numbers: dict[Hashable, Unknown] = {}

    def number(self, *key: Hashable) -> Unknown:
        """The uniform number of this name: new the first time, then the same."""
        return self._numbers.setdefault(key, Unknown(self))

    def decide(self, chance: float) -> bool:
        """True with probability `chance`; all alternatives are run in the end."""
        depth = len(self.decisions)
        decision = self.script[depth] if depth < len(self.script) else True
        self.decisions.append(decision)
        self.probability *= chance if decision else 1.0 - chance
        return decision


class Unknown:
    """Uniform on [low, high)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._low, self._high = 0.0, 1.0

    def __lt__(self, bound: float) -> bool:
        bound = float(bound)
        if bound >= self._high:
            return True
        if bound <= self._low:
            return False
        below = self._world.decide((bound - self._low) / (self._high - self._low))
        if below:
            self._high = bound
        else:
            self._low = bound
        return below


def law_of(run: Callable[[World], Result]) -> dict[Result, float]:
    """The exact law of what `run` returns."""
    law: dict[Result, float] = {}
    scripts: list[tuple[bool, ...]] = [()]
    while scripts:
        world = World(scripts.pop())
        result = run(world)
        law[result] = law.get(result, 0.0) + world.probability
        for depth in range(len(world.script), len(world.decisions)):
            scripts.append((*world.decisions[:depth], False))
    return law


def distance(law: dict[Result, float], other: dict[Result, float]) -> float:
    """Total variation distance."""
    return sum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in law.keys() | other.keys()) / 2
