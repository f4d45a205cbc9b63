"""Whether a kind of drafter runs at all: while it pays, and on trial after that, less and less often."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from outrider.scaling.settings import DrafterScaling, WorthSettings


class Mode(enum.Enum):
    """What a kind is doing."""

    ON = "on"
    PROBE = "probe"  # runs to see whether it pays
    OFF = "off"  # it did not
    IDLE = "idle"  # there are no sessions


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a kind is worth, by what was measured."""

    count: int  # replicas that give most tokens per cost; 0: it does not pay
    reason: str


@dataclass(frozen=True, slots=True)
class Trial:
    """The state of a kind."""

    mode: Mode = Mode.ON
    since: float | None = None  # it has run since; None: no replica has reported
    idle_since: float | None = None
    retry_at: float = 0.0  # OFF: when it is tried again
    retry_s: float = 0.0  # and how long that was
    crowd: float = 0.0  # OFF: running sessions per verifier when it stopped
    reason: str = ""  # OFF: why


@dataclass(frozen=True, slots=True)
class Scene:
    """What a trial goes by."""

    now: float
    reporting: int  # replicas of the kind
    sessions: float  # of all verifiers, running and waiting (that drafters hold, if no verifier tells)
    crowd: float  # running sessions per verifier
    verdict: Verdict | None  # None: too little is known
    others_probe: bool = False  # another kind is on trial: one at a time


def advance(trial: Trial, scene: Scene, drafter: DrafterScaling, worth: WorthSettings) -> Trial:
    """The state from now on."""
    trial = _watch(trial, scene)
    if trial.mode in (Mode.ON, Mode.PROBE):
        return _running(trial, scene, drafter, worth)
    if trial.mode is Mode.IDLE:
        return replace(trial, mode=Mode.ON, since=None) if scene.sessions > 0 else trial
    if scene.verdict is not None and scene.verdict.count and _ripe(trial, scene, worth):
        return replace(trial, mode=Mode.ON, retry_s=0.0)  # bounds kept it running, and it pays again
    called = scene.now >= trial.retry_at or scene.crowd < worth.retry_load * trial.crowd
    if called and scene.sessions > 0 and not scene.others_probe:
        return replace(trial, mode=Mode.PROBE, since=scene.now if scene.reporting else None)
    return trial


def _watch(trial: Trial, scene: Scene) -> Trial:
    since = None if not scene.reporting else scene.now if trial.since is None else trial.since
    idle = None if scene.sessions > 0 else scene.now if trial.idle_since is None else trial.idle_since
    return replace(trial, since=since, idle_since=idle)


def _running(trial: Trial, scene: Scene, drafter: DrafterScaling, worth: WorthSettings) -> Trial:
    if trial.idle_since is not None and scene.now - trial.idle_since >= drafter.idle_s:
        return replace(trial, mode=Mode.IDLE)
    if scene.verdict is None or not _ripe(trial, scene, worth):
        return trial
    if scene.verdict.count:
        return replace(trial, mode=Mode.ON, retry_s=0.0)
    # It stays suspicious until a verdict is in its favour: a kind that was on trial waits longer each time.
    retry_s = min(worth.max_retry_s, trial.retry_s * worth.retry_factor if trial.retry_s else worth.retry_s)
    return replace(
        trial,
        mode=Mode.OFF,
        retry_at=scene.now + retry_s,
        retry_s=retry_s,
        crowd=scene.crowd,
        reason=scene.verdict.reason,
    )


def _ripe(trial: Trial, scene: Scene, worth: WorthSettings) -> bool:
    return trial.since is not None and scene.now - trial.since >= worth.probe_s
