"""What goes on, twice a second: replicas, and the metrics that services serve."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from bench.autoscale.world import DRAFTER, VERIFIER
from tests.processes import parse_metrics, total
from tests.serve_cluster import ServeApp

from outrider.telemetry import names

EVERY_S = 0.5
SUMMED = {
    "rounds": names.ROUNDS.name,
    "draft_tokens": names.SPEC_DRAFT_TOKENS.name,
    "accepted": names.SPEC_ACCEPTED.name,
    "asked": names.DRAFTER_ASKED.name,
    "missed": names.PROPOSALS_MISSED.name,
    "tokens": names.GENERATION_TOKENS.name,
}
"""Counters over all replicas; one that goes takes nothing of the sum with it."""


@dataclass
class Sample:
    """One moment. Counters are sums since the start."""

    t: float  # seconds since the start
    streams: int
    verifiers: int  # that run
    drafters: int
    counters: dict[str, float]


@dataclass
class Sampler:
    """Looks until it is cancelled."""

    app: ServeApp
    streams: Callable[[], int]
    started: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    _pages: dict[str, dict[str, float]] = field(default_factory=dict)  # last counters by page
    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SUMMED, 0.0))

    async def run(self) -> None:
        """Look twice a second."""
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            while True:
                await self.look(client)
                await asyncio.sleep(EVERY_S)

    async def look(self, client: httpx.AsyncClient) -> None:
        """One sample."""
        states = await asyncio.to_thread(lambda: self.app.status.deployments)
        running = {name: one.replica_states.get("RUNNING", 0) for name, one in states.items()}
        pages = await self._targets(client)
        for address, page in zip(
            pages, await asyncio.gather(*(_page(client, one) for one in pages)), strict=True
        ):
            self._count(address, page)
        self.samples.append(
            Sample(
                round(time.monotonic() - self.started, 2),
                self.streams(),
                running.get(VERIFIER, 0),
                running.get(DRAFTER, 0),
                dict(self._sums),
            )
        )

    async def _targets(self, client: httpx.AsyncClient) -> list[str]:
        try:
            answer = await client.get(f"{self.app.cluster.http}/metrics/targets")
            return [one for group in answer.raise_for_status().json() for one in group["targets"]]
        except httpx.HTTPError:
            return []

    def _count(self, address: str, page: dict[str, float]) -> None:
        if not page:
            return
        before = self._pages.get(address, {})
        self._pages[address] = {name: total(page, metric) for name, metric in SUMMED.items()}
        for name, value in self._pages[address].items():
            self._sums[name] += value - before.get(name, 0.0)


async def _page(client: httpx.AsyncClient, address: str) -> dict[str, float]:
    """A page's metrics; none where its replica has just gone."""
    try:
        answer = await client.get(f"http://{address}/metrics")
        return parse_metrics(answer.raise_for_status().text)
    except httpx.HTTPError:
        return {}


@dataclass(frozen=True)
class Rates:
    """Between two moments `OVER_S` apart."""

    t: float
    tokens_per_s: float
    acceptance: float | None  # draft tokens accepted, of those verified; None: none were
    late: float | None  # of rounds that asked


OVER_S = 4.0
_DECISION = re.compile(r"^\w+ \S+ (\d\d:\d\d:\d\d),\d+ .*? -- scaling: (.*)$", re.MULTILINE)


def rates(samples: list[Sample]) -> list[Rates]:
    """What the counters say about each moment."""
    found, first = [], 0
    for sample in samples:
        while first + 1 < len(samples) and sample.t - samples[first + 1].t >= OVER_S:
            first += 1
        then = samples[first]
        grown = {name: sample.counters[name] - then.counters[name] for name in SUMMED}
        if sample.t > then.t:
            found.append(
                Rates(
                    sample.t,
                    grown["tokens"] / (sample.t - then.t),
                    _share(grown["accepted"], grown["draft_tokens"]),
                    _share(grown["missed"], grown["asked"]),
                )
            )
    return found


def steps(numbers: list[int]) -> list[int]:
    """One after the other, without repetitions."""
    return [one for place, one in enumerate(numbers) if not place or numbers[place - 1] != one]


def as_json(samples: list[Sample]) -> list[dict[str, Any]]:
    """For the results: counters as rates."""
    by_time = {one.t: one for one in rates(samples)}
    return [
        {
            **{key: value for key, value in asdict(sample).items() if key != "counters"},
            **{
                key: value if value is None else round(value, 3)
                for key, value in asdict(by_time[sample.t]).items()
                if key != "t"
            },
        }
        for sample in samples
        if sample.t in by_time
    ]


def decisions(folder: Path) -> list[str]:
    """The policy's lines in the log of Serve's controller, from the node's folder of logs."""
    lines = []
    for log in sorted((folder / "serve").glob("controller_*.log")):
        lines += _DECISION.findall(log.read_text("utf-8", "replace"))
    return [f"{time} {text}" for time, text in lines]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
