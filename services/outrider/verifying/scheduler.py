"""Who steps now. Pure decisions over plain numbers: no torch, no clock, no threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the scheduler sees of a running session."""

    missing: int  # tokens without KV, the root included: 1 when decoding, more while prefilling
    wait_until: float | None = None  # until when it may wait for its proposal; None: it is ready


@dataclass(frozen=True, slots=True)
class Share:
    """One session's part of a step."""

    index: int  # into the candidates
    tokens: int  # committed tokens to run, draft tokens not counted
    last: bool  # they reach the root, so that this is a round


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: run `shares`, or, if there are none, wait until `wait_until`."""

    shares: tuple[Share, ...] = ()
    wait_until: float | None = None  # None with no shares: there is nothing to wait for


def plan_step(candidates: Sequence[Candidate], now: float, prefill_budget: int) -> Plan:
    """Decide the next step over the running sessions, oldest first.

    A step starts when all are ready, or when the patience of one ran out: so sessions batch, and
    nobody waits longer than for the end of the shortest patience. Those that may still wait then
    join the next step. Prompts are run in chunks, `prefill_budget` tokens a step in all.
    """
    waits = [c.wait_until for c in candidates if c.wait_until is not None]
    if waits and min(waits) > now:
        return Plan(wait_until=min(waits))
    shares = []
    budget = prefill_budget
    for index, candidate in enumerate(candidates):
        if candidate.wait_until is not None and candidate.wait_until > now:
            continue
        if candidate.missing == 1:
            shares.append(Share(index, 1, last=True))
            continue
        tokens = min(candidate.missing, budget)
        if tokens:
            budget -= tokens
            shares.append(Share(index, tokens, last=tokens == candidate.missing))
    return Plan(tuple(shares))


def may_start(needed: int, free: int, running: int, max_sessions: int) -> bool:
    """Whether a waiting session may run: there is a place, and room for all its tokens.

    Alone it may always run: admission has checked that it fits the whole pool.

    Args:
        needed: KV blocks for its tokens.
        free: blocks that no running session holds.
        running: sessions that run.
        max_sessions: most sessions that run at once.
    """
    return running < max_sessions and (running == 0 or needed <= free)
