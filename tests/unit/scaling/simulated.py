"""A cluster in arithmetic: what verifiers and drafters would tell at a given load, second by second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from outrider.scaling import Decision, Memory, Observation, Pool, ScalingSettings, decide
from outrider.scaling.observation import VERIFIER, drafter_pool
from outrider.scaling.signals import DrafterCounts, DrafterSignals, VerifierSignals

PLAIN_ROUND_S = 0.05
"""A round without drafts."""


@dataclass
class Kind:
    """A kind of drafter."""

    accepted: float = 1.0  # tokens of it that a round accepts
    slows: float = 0.2  # share by which asking it makes a round longer
    in_time: float = 1e9  # sessions that a replica can serve in time
    capacity: int = 64


@dataclass
class Cluster:
    """Replicas that come `start_s` after they are asked for, and go at once."""

    settings: ScalingSettings
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    sessions: Callable[[float], float] = lambda now: 8.0
    capacity: int = 16
    kv_of_session: float = 0.01
    start_s: float = 3.0
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by pool
    now: float = 1000.0
    memory: Memory = field(default_factory=Memory)
    targets: dict[str, int] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    changes: list[Decision] = field(default_factory=list)
    history: list[dict[str, int]] = field(default_factory=list)
    silenced: set[str] = field(default_factory=set)  # replicas that tell nothing
    frozen: set[str] = field(default_factory=set)  # verifiers that make no step
    born: dict[str, dict[str, float]] = field(default_factory=dict)  # by pool and replica
    verifiers: dict[str, VerifierSignals] = field(default_factory=dict)
    drafters: dict[str, DrafterSignals] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        for pool in (VERIFIER, *map(drafter_pool, self.kinds)):
            self.targets.setdefault(pool, 1)
            self.born[pool] = {}
            self._resize(pool, -self.start_s)

    def run(self, seconds: float) -> Cluster:
        """So much time."""
        until = self.now + seconds
        while self.now < until:
            self.now += self.settings.interval_s
            self._work(self.settings.interval_s)
            self.memory, self.decisions = decide(self.settings, self.memory, self.observe())
            for pool, decision in self.decisions.items():
                if decision.changed:
                    self.changes.append(decision)
                self.targets[pool] = decision.replicas
                self._resize(pool)
            self.history.append(dict(self.targets))
        return self

    def numbers(self, pool: str) -> list[int]:
        """Targets of a pool, one after the other, without repetitions."""
        seen: list[int] = []
        for targets in self.history:
            if not seen or seen[-1] != targets[pool]:
                seen.append(targets[pool])
        return seen

    def up(self, pool: str) -> list[str]:
        """Replicas that run."""
        return [name for name, born in self.born[pool].items() if self.now - born >= self.start_s]

    def observe(self) -> Observation:
        """What the policy is shown."""
        drafters = {
            kind: self._pool(drafter_pool(kind), self.drafters, DrafterSignals(capacity=own.capacity))
            for kind, own in self.kinds.items()
        }
        verifiers = self._pool(VERIFIER, self.verifiers, VerifierSignals(capacity=self.capacity))
        return Observation(self.now, verifiers, drafters)

    def restart(self, name: str) -> None:
        """A process starts anew under its old name: its counters begin at 0."""
        self.verifiers[name] = VerifierSignals(capacity=self.capacity)

    def _pool(self, pool: str, told: Mapping[str, object], fresh: object) -> Pool:  # type: ignore[type-arg]
        lowest, highest = self.bounds.get(pool, (1, 8) if pool == VERIFIER else (0, 8))
        replicas = {name: None if name in self.silenced else told.get(name, fresh) for name in self.up(pool)}
        return Pool(self.targets[pool], lowest, highest, replicas)

    def _resize(self, pool: str, age: float = 0.0) -> None:
        born = self.born[pool]
        while len(born) > self.targets[pool]:
            born.pop(next(reversed(born)))
        while len(born) < self.targets[pool]:
            self.made += 1
            born[f"{pool}#{self.made}"] = self.now + age

    def _work(self, seconds: float) -> None:
        names = self.up(VERIFIER)
        if not names:
            return
        share = self.sessions(self.now) / len(names)
        running = min(self.capacity, share)
        served = {kind: self._served(kind) for kind in self.kinds}
        longer = 1 + sum(own.slows * served[kind] for kind, own in self.kinds.items() if served[kind] > 0)
        for name in names:
            old = self.verifiers.get(name, VerifierSignals(capacity=self.capacity))
            rounds = 0.0 if name in self.frozen else running * seconds / (PLAIN_ROUND_S * longer)
            self.verifiers[name] = self._stepped(old, rounds, served, running, share, seconds)
        for kind, own in self.kinds.items():
            up = self.up(drafter_pool(kind))
            for name in up:
                held = min(own.capacity, self.sessions(self.now) / len(up))
                before = self.drafters.get(name, DrafterSignals(capacity=own.capacity))
                self.drafters[name] = replace(before, sessions=held, queued=held / 4)

    def _stepped(
        self,
        old: VerifierSignals,
        rounds: float,
        served: Mapping[str, float],
        running: float,
        share: float,
        seconds: float,
    ) -> VerifierSignals:
        counts, tokens, drafted = dict(old.drafters), rounds, 0.0
        for kind, own in self.kinds.items():
            if not self.up(drafter_pool(kind)):
                continue
            before = counts.get(kind, DrafterCounts())
            useful = rounds * served[kind]
            counts[kind] = DrafterCounts(
                asked=before.asked + rounds,
                missed=before.missed + rounds - useful,
                accepted=before.accepted + own.accepted * useful,
            )
            tokens += own.accepted * useful
            drafted = max(drafted, useful)
        return replace(
            old,
            running=running,
            waiting=max(0.0, share - running),
            kv_usage=min(1.0, running * self.kv_of_session),
            rounds=old.rounds + rounds,
            plain_rounds=old.plain_rounds + rounds - drafted,
            tokens=old.tokens + tokens,
            step_s=old.step_s + (0.95 * seconds if rounds else 0.0),
            drafters=counts,
        )

    def _served(self, kind: str) -> float:
        """Share of the rounds that get their proposal in time."""
        replicas, sessions = len(self.up(drafter_pool(kind))), self.sessions(self.now)
        if not replicas or not sessions:
            return 0.0
        return min(1.0, self.kinds[kind].in_time * replicas / sessions)
