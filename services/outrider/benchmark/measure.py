"""Runs a plan of blocks and turns the answers into figures.

Definitions:

- **seconds** of a drafter: wall time of its blocks, added up; what other drafters do in between
  does not count. Of a category: each block's wall time is shared out among its requests by how
  long each was in flight; at concurrency 1 that is the requests' own time.
- **tokens per second**: tokens delivered / seconds.
- **TTFT**: from sending (in an open loop: from when sending was due) to the first chunk with tokens.
- **ITL**: the gap before a chunk of n tokens counts as n samples of gap / n, so that the mean is the
  time per token whatever the size of the chunks. The first chunk has no gap.
- **rounds**: verification steps; **tokens per round**: tokens delivered / rounds.
- **identical to off**: every request's token ids equal those of the same prompt with speculation off;
  None without an `off` among the drafters.
- Percentiles interpolate linearly between the two nearest samples (type 7, as numpy does).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from outrider.benchmark.client import Answer, Client, RequestOptions
from outrider.benchmark.workload import OFF, Block, Prompt, arrival_offsets

ALL = "all"
"""Name of the row over all categories."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request of a run."""

    drafter: str
    concurrency: int
    prompt: Prompt
    answer: Answer
    seconds: float  # its share of its block's wall time


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one drafter, category and concurrency; the module explains each."""

    drafter: str
    category: str
    concurrency: int
    requests: int
    tokens: int
    seconds: float
    tokens_per_second: float
    ttft_ms_p50: float | None
    itl_ms_p50: float | None
    itl_ms_p99: float | None
    rounds: int
    drafted: int
    accepted: int
    tokens_per_round: float | None
    identical_to_off: bool | None


@dataclass(frozen=True, slots=True)
class Runner:
    """Sends blocks to one gateway."""

    client: Client
    model: str
    options: RequestOptions
    rate: float | None = None  # requests per second of an open loop; None: closed loop
    answered: Callable[[Block], None] = lambda block: None  # called after each request

    async def run(self, block: Block, concurrency: int) -> list[Sample]:
        """Answer a block's prompts, at most `concurrency` at a time, and wait for the last one.

        Raises:
            OutriderError: a request failed; the others of the block are given up.
        """
        slots = asyncio.Semaphore(concurrency)
        start = time.perf_counter()
        due = self._due(block, start)

        async def one(prompt: Prompt, scheduled: float | None) -> Answer:
            if scheduled is not None:
                await asyncio.sleep(max(0.0, scheduled - time.perf_counter()))
            async with slots:
                answer = await self.client.generate(
                    self.model, prompt, block.drafter, self.options, scheduled=scheduled
                )
            self.answered(block)
            return answer

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(one(prompt, scheduled))
                    for prompt, scheduled in zip(block.prompts, due, strict=True)
                ]
        except ExceptionGroup as failures:
            # The others were cancelled because of it: the first one says all there is to say.
            raise failures.exceptions[0] from None
        return share_out(block, concurrency, [task.result() for task in tasks], time.perf_counter() - start)

    def _due(self, block: Block, start: float) -> list[float] | list[None]:
        if self.rate is None:
            return [None] * len(block.prompts)
        offsets = arrival_offsets(len(block.prompts), self.rate, self.options.seed + block.index)
        return [start + offset for offset in offsets]


def share_out(block: Block, concurrency: int, answers: Sequence[Answer], wall_s: float) -> list[Sample]:
    """Samples of a block whose shares of the wall time add up to it."""
    in_flight = [answer.done - answer.sent for answer in answers]
    whole = sum(in_flight)
    return [
        Sample(block.drafter, concurrency, prompt, answer, wall_s * own / whole if whole else 0.0)
        for prompt, answer, own in zip(block.prompts, answers, in_flight, strict=True)
    ]


def percentile(samples: Sequence[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of the samples lie; None without samples."""
    if not samples:
        return None
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def token_gaps(answer: Answer) -> list[float]:
    """Seconds between tokens, one entry for each token after the first chunk."""
    gaps: list[float] = []
    for (before, _), (now, tokens) in zip(answer.arrivals, answer.arrivals[1:], strict=False):
        gaps += [(now - before) / tokens] * tokens
    return gaps


def rows_of(samples: Sequence[Sample]) -> list[Row]:
    """One row for each drafter, category (and ALL, last) and concurrency, drafters side by side."""
    reference = {
        (sample.concurrency, sample.prompt.prompt_id): sample.answer.token_ids
        for sample in samples
        if sample.drafter == OFF
    }
    groups: dict[tuple[int, str, str], list[Sample]] = {}
    for sample in samples:
        for category in (sample.prompt.category, ALL):
            groups.setdefault((sample.concurrency, category, sample.drafter), []).append(sample)
    drafters = list(dict.fromkeys(sample.drafter for sample in samples))
    categories = [*dict.fromkeys(sample.prompt.category for sample in samples), ALL]

    def place(key: tuple[int, str, str]) -> tuple[int, int, int]:
        return key[0], categories.index(key[1]), drafters.index(key[2])

    return [_row(key, groups[key], reference) for key in sorted(groups, key=place)]


def _row(
    key: tuple[int, str, str], group: Sequence[Sample], reference: dict[tuple[int, str], list[int]]
) -> Row:
    concurrency, category, drafter = key
    answers = [sample.answer for sample in group]
    tokens = sum(len(answer.token_ids) for answer in answers)
    seconds = sum(sample.seconds for sample in group)
    rounds = sum(answer.rounds for answer in answers)
    gaps = [gap for answer in answers for gap in token_gaps(answer)]
    waits = [answer.arrivals[0][0] - answer.sent for answer in answers if answer.arrivals]
    return Row(
        drafter=drafter,
        category=category,
        concurrency=concurrency,
        requests=len(group),
        tokens=tokens,
        seconds=round(seconds, 4),
        tokens_per_second=round(tokens / seconds, 3) if seconds else 0.0,
        ttft_ms_p50=_milliseconds(percentile(waits, 0.5)),
        itl_ms_p50=_milliseconds(percentile(gaps, 0.5)),
        itl_ms_p99=_milliseconds(percentile(gaps, 0.99)),
        rounds=rounds,
        drafted=sum(answer.drafted for answer in answers),
        accepted=sum(answer.accepted for answer in answers),
        tokens_per_round=round(tokens / rounds, 4) if rounds else None,
        identical_to_off=_identical(group, reference),
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _identical(group: Iterable[Sample], reference: dict[tuple[int, str], list[int]]) -> bool | None:
    if not reference:
        return None
    return all(
        sample.answer.token_ids == reference[sample.concurrency, sample.prompt.prompt_id] for sample in group
    )
