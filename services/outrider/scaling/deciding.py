"""The decision: how many verifiers, and how many drafters of each kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from outrider.scaling import drafters, verifiers
from outrider.scaling.counting import drafters_since, verifiers_since
from outrider.scaling.drafters import DrafterLoad, each_holds, lateness_of, learn, wanted_drafters
from outrider.scaling.memory import KindMemory, Memory, remember
from outrider.scaling.observation import VERIFIER, Decision, Observation, Pool, Why, Wish, drafter_pool
from outrider.scaling.settings import PoolScaling, ScalingSettings
from outrider.scaling.steady import Hold, steady
from outrider.scaling.trial import Mode, Scene, Trial, Verdict, advance
from outrider.scaling.verdicts import Running, verdicts
from outrider.scaling.verifiers import VerifierLoad, wanted_verifiers
from outrider.scaling.watching import silent, stuck
from outrider.scaling.worth import gains_of, with_baseline


def decide(settings: ScalingSettings, memory: Memory, now: Observation) -> tuple[Memory, dict[str, Decision]]:
    """Decisions by pool, and what to remember for the next ones.

    Pure: the same arguments give the same answer. Call it every `settings.interval_s` or so.
    """
    memory = remember(settings, memory, now)
    load = _verifier_load(settings, memory, now)
    pool = now.verifiers
    wish = wanted_verifiers(settings.verifier, load, pool.target)
    decision, hold = _decided(VERIFIER, pool, wish, settings.verifier, memory.hold, now.now)
    memory = replace(memory, hold=hold)
    decisions = {VERIFIER: decision}
    plans = {kind: _plan(settings, memory, now, kind, load) for kind in now.drafters}
    memory, found = _judge(settings, memory, now, plans)
    for kind, plan in plans.items():
        others = any(one.trial.mode is Mode.PROBE for name, one in memory.kinds.items() if name != kind)
        scene = Scene(
            now=now.now,
            reporting=memory.kinds[kind].reporting,
            sessions=load.sessions if load.reporting else plan.load.sessions,
            crowd=load.running / max(1, load.reporting),
            verdict=found.get(kind),
            others_probe=others,
        )
        kept, decision = _drafters(settings, memory.kinds[kind], now, kind, plan, scene)
        memory = replace(memory, kinds={**memory.kinds, kind: kept})
        decisions[decision.pool] = decision
    return memory, decisions


@dataclass(frozen=True, slots=True)
class _Plan:
    """What load alone asks of a kind."""

    kind: KindMemory
    load: DrafterLoad
    each: float
    wish: Wish


def _verifier_load(settings: ScalingSettings, memory: Memory, now: Observation) -> VerifierLoad:
    return verifiers.load_of(
        verifiers_since(memory.samples, now.now - settings.load_window_s),
        reporting=len(now.verifiers.reports),
        silent=silent(memory.watched, now.verifiers, now.now, settings.silent_s),
        stuck=stuck(memory.watched, now.verifiers, now.now, settings.verifier.stuck_s),
    )


def _plan(
    settings: ScalingSettings, memory: Memory, now: Observation, kind: str, all_: VerifierLoad
) -> _Plan:
    own, pool, kept = settings.of_drafter(kind), now.drafters[kind], memory.kinds[kind]
    start = now.now - settings.load_window_s
    load = drafters.load_of(
        drafters_since(memory.samples, start, kind),
        verifiers_since(memory.samples, start).seconds,
        reporting=kept.reporting,
        silent=silent(kept.watched, pool, now.now, settings.silent_s),
    )
    if not kept.reporting:  # nobody holds a session of it; all of them may want it
        load = replace(load, sessions=all_.sessions, capacity=kept.capacity)
    since = max(kept.since, now.now - settings.worth.window_s)
    late = lateness_of(drafters_since(memory.samples, since, kind))
    kept = replace(kept, ceiling=learn(own, kept.ceiling, late, now.now))
    known = kept.reporting or all_.reporting
    each = each_holds(own, load, kept.ceiling, now.now) if known else 0.0
    return _Plan(kept, load, each, wanted_drafters(own, load, each, late, pool.target))


def _judge(
    settings: ScalingSettings, memory: Memory, now: Observation, plans: dict[str, _Plan]
) -> tuple[Memory, dict[str, Verdict]]:
    """What each kind is worth, where enough is known."""
    memory = replace(memory, kinds={kind: plan.kind for kind, plan in plans.items()})
    if not settings.worth.enabled:
        return memory, {}
    since = max(memory.mix_since, now.now - settings.worth.window_s)
    totals = verifiers_since(memory.samples, since)
    memory = replace(memory, baselines=with_baseline(settings.worth, memory.baselines, totals, now.now))
    seen = {kind: drafters_since(memory.samples, since, kind) for kind in plans if kind in memory.mix}
    gains = gains_of(settings.worth, memory.baselines, totals, seen, now.now)
    if gains is None or not now.verifiers.reports:
        return memory, {}
    running = {
        kind: Running(
            plans[kind].load.reporting,
            plans[kind].load.sessions,
            plans[kind].each,
            min(plans[kind].wish.count, now.drafters[kind].highest),
        )
        for kind in seen
    }
    return memory, verdicts(settings, gains, len(now.verifiers.reports), running)


def _drafters(
    settings: ScalingSettings, kept: KindMemory, now: Observation, kind: str, plan: _Plan, scene: Scene
) -> tuple[KindMemory, Decision]:
    own, pool = settings.of_drafter(kind), now.drafters[kind]
    trial = advance(kept.trial, scene, own, settings.worth)
    wish = _wish(trial, plan.wish, scene, pool.lowest)
    decision, hold = _decided(drafter_pool(kind), pool, wish, own, kept.hold, now.now)
    return replace(kept, trial=trial, hold=hold), decision


def _decided(
    name: str, pool: Pool[Any], wish: Wish, settings: PoolScaling, hold: Hold, now: float
) -> tuple[Decision, Hold]:
    count, hold = steady(wish, pool.target, pool.lowest, pool.highest, settings, hold, now)
    allowed = min(max(wish.count, pool.lowest), pool.highest)
    return Decision(name, pool.target, count, wish, allowed), hold


def _wish(trial: Trial, by_load: Wish, scene: Scene, lowest: int) -> Wish:
    """What a kind gets in its state."""
    if trial.mode is Mode.OFF:
        wait = max(0.0, trial.retry_at - scene.now)
        return Wish(lowest, Why.NOT_WORTH, f"{trial.reason}; tried again in {wait:.0f} s", at_once=True)
    if trial.mode is Mode.IDLE:
        return Wish(lowest, Why.IDLE, "there are no sessions", at_once=True)
    if trial.mode is Mode.PROBE:
        return Wish(max(1, lowest), Why.PROBE, "runs to see whether it pays", at_once=True)
    verdict = scene.verdict
    if verdict is not None and 0 < verdict.count < by_load.count:
        return Wish(verdict.count, Why.WORTH, verdict.reason)
    return by_load
