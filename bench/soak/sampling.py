"""Looks at all services while the soak runs: memory of each process, and counters over all their lives."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import httpx
import psutil
from bench.soak.world import MORTAL, World
from tests.stack import Service

INTERVAL_S = 2.0
TIMEOUT_S = 1.0
COUNTERS = (
    "outrider_failovers_total",
    "outrider_failover_attempts_total",
    "outrider_sessions_moved_total",
    "outrider_store_dropped_commits_total",
)
GROWN_MIB, GROWN_SHARE = 48.0, 0.10
"""A process that was never restarted may have so much more at the end than after half of the time."""


@dataclass(frozen=True)
class Memory:
    """Resident memory of one process, in MiB."""

    service: str
    at_half: float
    at_end: float
    slope_per_min: float  # least squares over the second half

    @property
    def grows(self) -> bool:
        """More than noise."""
        return self.at_end - self.at_half > max(GROWN_MIB, GROWN_SHARE * self.at_half)


@dataclass
class Sampler:
    """Samples until it is cancelled."""

    world: World
    _resident: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _counted: dict[tuple[str, int, str], float] = field(default_factory=dict)

    async def run(self) -> None:
        """Every few seconds, all services at once."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Once."""
        services = self.world.stack.services.values()
        await asyncio.gather(*(asyncio.to_thread(self._look_at, service) for service in services))

    def counters(self) -> dict[str, float]:
        """Each counter with its labels, over all processes that there were."""
        sums: dict[str, float] = {}
        for (_, _, name), value in self._counted.items():
            sums[name] = sums.get(name, 0.0) + value
        return {name: value for name, value in sorted(sums.items()) if value}

    def memory(self) -> list[Memory]:
        """Of the processes that nobody restarts."""
        found = []
        for name, samples in sorted(self._resident.items()):
            half = samples[len(samples) // 2 :]
            if name in MORTAL or len(half) < 2:
                continue
            found.append(Memory(name, half[0][1], half[-1][1], _slope(half) * 60))
        return found

    def _look_at(self, service: Service) -> None:
        process = service.process
        if process is None or process.poll() is not None:
            return
        try:
            resident = psutil.Process(process.pid).memory_info().rss / 2**20
            values = service.metrics(timeout_s=TIMEOUT_S)
        except (psutil.Error, httpx.HTTPError):
            return  # it is frozen, or just gone
        self._resident.setdefault(service.name, []).append((time.monotonic(), resident))
        for key, value in values.items():
            name, _, labels = key.partition("{")
            if name in COUNTERS:
                label = ",".join(part for part in labels.rstrip("}").split(",") if "model_name" not in part)
                self._counted[service.name, process.pid, f"{name}{{{label}}}" if label else name] = value


def _slope(samples: list[tuple[float, float]]) -> float:
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0
