"""What the policy remembers from one decision to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from outrider.scaling.counting import Sample, sample
from outrider.scaling.drafters import Ceiling
from outrider.scaling.observation import Observation
from outrider.scaling.settings import ScalingSettings
from outrider.scaling.steady import Hold
from outrider.scaling.trial import Trial
from outrider.scaling.watching import Watched, watch
from outrider.scaling.worth import Baseline


@dataclass(frozen=True, slots=True)
class KindMemory:
    """Of one kind of drafter."""

    hold: Hold = field(default_factory=Hold)
    trial: Trial = field(default_factory=Trial)
    ceiling: Ceiling | None = None
    capacity: float = 0.0  # sessions that a replica can hold, as last told
    watched: Mapping[str, Watched] = field(default_factory=dict)
    reporting: int = 0
    since: float = 0.0  # so many report since


@dataclass(frozen=True, slots=True)
class Memory:
    """Of everything. It starts empty, and with it come the first decisions: to change nothing."""

    last: Observation | None = None
    samples: tuple[Sample, ...] = ()
    hold: Hold = field(default_factory=Hold)  # of verifiers
    watched: Mapping[str, Watched] = field(default_factory=dict)  # verifiers
    kinds: Mapping[str, KindMemory] = field(default_factory=dict)
    baselines: Mapping[int, Baseline] = field(default_factory=dict)
    mix: frozenset[str] = frozenset()  # kinds of which replicas report
    mix_since: float = 0.0


def remember(settings: ScalingSettings, memory: Memory, now: Observation) -> Memory:
    """Take an observation in."""
    longest = max(settings.worth.window_s, settings.load_window_s)
    samples = tuple(one for one in memory.samples if one.at > now.now - longest)
    mix = frozenset(kind for kind, pool in now.drafters.items() if pool.reports)
    return replace(
        memory,
        last=now,
        samples=(*samples, sample(memory.last, now)),
        watched=watch(memory.watched, now.verifiers, now.now),
        kinds={
            kind: _kind(memory.kinds.get(kind, KindMemory(since=now.now)), now, kind) for kind in now.drafters
        },
        mix=mix,
        mix_since=memory.mix_since if mix == memory.mix and memory.last is not None else now.now,
    )


def _kind(kind: KindMemory, now: Observation, name: str) -> KindMemory:
    pool = now.drafters[name]
    reporting = len(pool.reports)
    told = [one.capacity for one in pool.reports.values()]
    return replace(
        kind,
        watched=watch(kind.watched, pool, now.now),
        capacity=sum(told) / reporting if reporting else kind.capacity,
        reporting=reporting,
        since=kind.since if reporting == kind.reporting else now.now,
    )
