"""How many verifiers: by sessions that run and wait, and by KV."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.scaling.counting import VerifierTotals
from outrider.scaling.observation import Why, Wish
from outrider.scaling.settings import VerifierScaling
from outrider.scaling.steady import needed


@dataclass(frozen=True, slots=True)
class VerifierLoad:
    """Averages of the last seconds, of all verifiers together."""

    running: float = 0.0
    waiting: float = 0.0
    capacity: float = 0.0  # sessions that one replica can run
    kv_usage: float = 0.0  # pools in use: 1.5 are one and a half replicas' pools
    reporting: int = 0  # replicas that have told something
    silent: int = 0  # that have not, and may yet
    stuck: int = 0  # of those that report

    @property
    def sessions(self) -> float:
        """Running and waiting."""
        return self.running + self.waiting


def load_of(totals: VerifierTotals, *, reporting: int, silent: int = 0, stuck: int = 0) -> VerifierLoad:
    """The averages of a stretch of time."""
    seconds, replica_s = totals.seconds or 1.0, totals.replica_s or 1.0
    return VerifierLoad(
        running=totals.running_s / seconds,
        waiting=totals.waiting_s / seconds,
        capacity=totals.capacity_s / replica_s,
        kv_usage=totals.kv_usage_s / seconds,
        reporting=reporting,
        silent=silent,
        stuck=stuck,
    )


def wanted_verifiers(settings: VerifierScaling, load: VerifierLoad, current: int) -> Wish:
    """How many there should be instead of `current`, before bounds and delays."""
    each = settings.target_sessions or settings.target_use * load.capacity
    if not load.reporting or not each:
        return Wish(current, Why.NO_DATA, "no verifier has reported yet")
    sound = max(0, current - load.stuck)
    by_sessions = max(1, needed(load.sessions, each, sound, settings.slack)) + load.stuck
    by_kv = max(1, needed(load.kv_usage, settings.target_kv_use, sound, settings.slack)) + load.stuck
    lame = f", {load.stuck} stuck" if load.stuck else ""
    if by_kv > by_sessions:
        used = 100 * load.kv_usage / max(1, load.reporting)
        text = f"{used:.0f}% of KV in use, {100 * settings.target_kv_use:.0f}% aimed at{lame}"
        wish = Wish(by_kv, Why.KV, text)
    else:
        text = f"{load.running:.1f} sessions run, {load.waiting:.1f} wait; {each:.1f} a verifier{lame}"
        wish = Wish(by_sessions, Why.SESSIONS, text)
    if load.silent and wish.count < current:
        return Wish(current, Why.SILENT, f"{load.silent} verifiers have not reported yet; {wish.reason}")
    return wish
