"""When a kind of drafter goes, and when it is tried again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.scaling.settings import DrafterScaling, WorthSettings
from outrider.scaling.trial import Mode, Scene, Trial, Verdict, advance

DRAFTER = DrafterScaling(idle_s=100)
WORTH = WorthSettings(probe_s=30, retry_s=60, retry_factor=2, max_retry_s=200, retry_load=0.5)
PAYS, DOES_NOT = Verdict(2, "pays"), Verdict(0, "does not pay")


def scene(now: float, verdict: Verdict | None = None, **more: float) -> Scene:
    return replace(Scene(now, reporting=1, sessions=8, crowd=8, verdict=verdict), **more)  # type: ignore[arg-type]


def step(trial: Trial, at: Scene) -> Trial:
    return advance(trial, at, DRAFTER, WORTH)


RUNNING = Trial(Mode.ON, since=0)
STOPPED = Trial(Mode.OFF, retry_at=160, retry_s=60, crowd=8, reason="does not pay")


@pytest.mark.parametrize(
    ("trial", "at", "mode"),
    [
        pytest.param(RUNNING, scene(30, PAYS), Mode.ON, id="it pays"),
        pytest.param(RUNNING, scene(30, DOES_NOT), Mode.OFF, id="it does not"),
        pytest.param(RUNNING, scene(29, DOES_NOT), Mode.ON, id="it has not run long enough to tell"),
        pytest.param(RUNNING, scene(99), Mode.ON, id="too little is known"),
        pytest.param(Trial(), scene(99, DOES_NOT, reporting=0), Mode.ON, id="it has not come yet"),
        pytest.param(replace(RUNNING, idle_since=0), scene(100, sessions=0), Mode.IDLE, id="idle for long"),
        pytest.param(
            replace(RUNNING, idle_since=0), scene(99, sessions=0), Mode.ON, id="not yet idle for long"
        ),
        pytest.param(Trial(Mode.IDLE), scene(500), Mode.ON, id="sessions are back"),
        pytest.param(Trial(Mode.IDLE), scene(500, sessions=0), Mode.IDLE, id="still none"),
        pytest.param(STOPPED, scene(159, reporting=0), Mode.OFF, id="not tried again yet"),
        pytest.param(STOPPED, scene(160, reporting=0), Mode.PROBE, id="tried again"),
        pytest.param(STOPPED, scene(160, reporting=0, sessions=0), Mode.OFF, id="not without sessions"),
        pytest.param(
            STOPPED, scene(160, reporting=0, others_probe=True), Mode.OFF, id="not with another one"
        ),
        pytest.param(STOPPED, scene(110, reporting=0, crowd=3), Mode.PROBE, id="tried again: load fell"),
        pytest.param(STOPPED, scene(110, reporting=0, crowd=5), Mode.OFF, id="load fell, but not enough"),
        pytest.param(replace(STOPPED, since=0), scene(110, PAYS), Mode.ON, id="bounds kept it, and it pays"),
        pytest.param(Trial(Mode.PROBE, since=0), scene(30, PAYS), Mode.ON, id="the trial went well"),
        pytest.param(Trial(Mode.PROBE, since=0), scene(30, DOES_NOT), Mode.OFF, id="the trial did not"),
    ],
)
def test_modes(trial: Trial, at: Scene, mode: Mode) -> None:
    assert step(trial, at).mode is mode


def test_each_vain_trial_makes_the_next_one_later_up_to_a_bound() -> None:
    trial, waits = RUNNING, []
    now = 30.0
    for _ in range(4):
        trial = step(trial, scene(now, DOES_NOT))
        assert trial.mode is Mode.OFF
        waits.append(trial.retry_at - now)
        trial = step(trial, scene(trial.retry_at, reporting=0))
        trial = step(trial, scene(trial.retry_at + 1))
        now = trial.retry_at + 1 + 30
    assert waits == [60, 120, 200, 200]


def test_a_kind_that_pays_again_begins_anew() -> None:
    trial = step(replace(STOPPED, mode=Mode.PROBE, since=0), scene(30, PAYS))
    assert step(trial, scene(31, DOES_NOT)).retry_at == 31 + 60


def test_a_kind_that_comes_late_is_judged_from_then() -> None:
    trial = step(Trial(), scene(50))
    assert trial.since == 50
    assert step(trial, scene(79, DOES_NOT)).mode is Mode.ON
    assert step(trial, scene(80, DOES_NOT)).mode is Mode.OFF
