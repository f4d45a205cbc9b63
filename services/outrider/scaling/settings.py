"""The settings of the scaling policies: `policy_kwargs` of the application's `autoscaling_policy`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PoolScaling(_Section):
    """A pool of like replicas. How many there may be is not said here, but in `pools`."""

    target_use: float = Field(0.7, gt=0, le=1, description="share of its sessions that a replica is to have")
    target_sessions: float | None = Field(
        None, gt=0, description="sessions that a replica is to have; empty: target_use of what it can hold"
    )
    slack: float = Field(
        0.15, ge=0, lt=1, description="fewer replicas only if they then stay this share below their targets"
    )
    up_delay_s: float = Field(5.0, ge=0, description="more replicas are wanted for so long before they come")
    down_delay_s: float = Field(
        300.0,
        ge=0,
        description="fewer are wanted for so long before they go: the most wanted in that time stay",
    )


class VerifierScaling(PoolScaling):
    """Verifiers: they follow sessions and KV."""

    price: float = Field(
        1.0, gt=0, description="what a replica costs an hour, in any unit, the same for all pools"
    )
    target_kv_use: float = Field(
        0.85, gt=0, le=1, description="share of its KV pool that a replica is to use"
    )
    stuck_s: float = Field(
        30.0, gt=0, description="a replica with sessions and no step in so long is stuck, and not counted"
    )


class DrafterScaling(PoolScaling):
    """Drafters of one kind: they follow sessions, queue and late proposals."""

    price: float = Field(0.2, ge=0, description="what a replica costs an hour, in the verifiers' unit")
    target_queued: float = Field(
        16.0, gt=0, description="sessions of a replica that wait for a proposal, on average of load_window_s"
    )
    max_late: float = Field(
        0.05, gt=0, lt=1, description="share of rounds that may go on without the proposal they had asked for"
    )
    min_asked: int = Field(100, ge=1, description="rounds that must have asked before lateness is judged")
    forget_s: float = Field(
        600.0, gt=0, description="after so long more sessions are tried again than a replica was late with"
    )
    idle_s: float = Field(600.0, gt=0, description="no session at all for so long: as few as are allowed")


class WorthSettings(_Section):
    """When speculation pays, and when it is tried again."""

    enabled: bool = Field(True, description="false: drafters follow their load alone, whatever they bring")
    window_s: float = Field(60.0, gt=0, description="time over which tokens and costs are measured")
    min_rounds: int = Field(500, ge=1, description="rounds in it, before anything is judged")
    margin: float = Field(
        0.05, ge=0, lt=1, description="running drafters stay while they cost tokens no more than this share"
    )
    probe_s: float = Field(
        30.0, gt=0, description="a kind that comes runs at least so long before it is judged"
    )
    retry_s: float = Field(120.0, gt=0, description="a kind that did not pay is tried again after so long")
    retry_factor: float = Field(2.0, ge=1, description="each vain try makes that so many times longer")
    max_retry_s: float = Field(3600.0, gt=0, description="but never longer than this")
    retry_load: float = Field(
        0.5, ge=0, lt=1, description="tried at once if sessions per verifier fall below this share of then"
    )
    baseline_s: float = Field(
        3600.0, gt=0, description="a measured speed without drafts is used for so long; then it is estimated"
    )

    @model_validator(mode="after")
    def _check_retries(self) -> WorthSettings:
        if self.max_retry_s < self.retry_s:
            raise ValueError(f"max_retry_s ({self.max_retry_s:g}) is below retry_s ({self.retry_s:g})")
        return self


class ScalingSettings(_Section):
    """All of them."""

    interval_s: float = Field(1.0, gt=0, description="time between two decisions")
    load_window_s: float = Field(
        5.0, gt=0, description="time over which sessions, queues and KV are averaged"
    )
    silent_s: float = Field(
        15.0, gt=0, description="a replica that has not reported for so long is taken for absent"
    )
    verifier: VerifierScaling = VerifierScaling()
    drafter: DrafterScaling = Field(
        DrafterScaling(), description="of every kind that `drafters` does not name"
    )
    drafters: dict[str, DrafterScaling] = Field(
        default_factory=dict, description="by the names in config.drafters, in place of `drafter`"
    )
    worth: WorthSettings = WorthSettings()

    @model_validator(mode="after")
    def _check_times(self) -> ScalingSettings:
        for name, window in (("load_window_s", self.load_window_s), ("worth.window_s", self.worth.window_s)):
            if window < self.interval_s:
                raise ValueError(f"{name} ({window:g}) is below interval_s ({self.interval_s:g})")
        return self

    def of_drafter(self, name: str) -> DrafterScaling:
        """The settings of one kind."""
        return self.drafters.get(name, self.drafter)
