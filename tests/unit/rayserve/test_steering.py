"""The policy as Serve's controller sees it: contexts in, numbers out, and never an exception."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ray import cloudpickle
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.autoscaling_policy import _apply_app_level_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from outrider.core.errors import ConfigError
from outrider.rayserve.autoscaling import ApplicationPolicy
from outrider.rayserve.autoscaling_options import followed_by_policy, followed_by_requests
from outrider.rayserve.steering import Steering, read_settings
from outrider.scaling.signals import DrafterSignals, VerifierSignals, to_numbers

SETTINGS = {
    "load_window_s": 3,
    "verifier": {"target_sessions": 4, "up_delay_s": 2, "down_delay_s": 5},
    "drafter": {"target_sessions": 2, "up_delay_s": 2, "down_delay_s": 5},
}


Signals = VerifierSignals | DrafterSignals | None


def deployment(name: str) -> DeploymentID:
    return DeploymentID(name=name, app_name="outrider")


class Serve:
    """Serve's part: contexts of deployments whose replicas share what given signals tell, and time."""

    def __init__(self, given: Mapping[str, Any] = SETTINGS) -> None:
        self.now = 0.0
        self.steering = Steering(given, clock=lambda: self.now, wall_clock=lambda: 1e9 + self.now)
        self.policy = _apply_app_level_autoscaling_config(lambda contexts: (self.steering(contexts), {}))
        self.targets = {"verifier": 1, "drafter-eagle": 1, "gateway": 1, "registry": 1}
        self.signals: dict[str, Signals] = {
            "verifier": VerifierSignals(running=1, capacity=8),
            "drafter-eagle": DrafterSignals(sessions=1, capacity=8),
        }
        self.configs = {
            name: _config(followed_by_requests(1, 4, 10) if name == "gateway" else followed_by_policy(0, 4))
            for name in self.targets
        }
        self.requests = 0.0
        self.lag_s = 0.0  # age of the last report

    def run(self, seconds: float) -> dict[str, int]:
        """Ten calls a second, as the controller makes."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            decided, _ = self.policy({deployment(name): self.context(name) for name in self.targets})
            for key, count in decided.items():
                self.targets[key.name] = int(count)
        return self.targets

    def context(self, name: str) -> AutoscalingContext:
        replicas = [ReplicaID(str(one), deployment(name)) for one in range(self.targets[name])]
        told = _shared(self.signals.get(name), len(replicas))
        numbers = {"RUNNING_REQUESTS": 0.0} | ({} if told is None else to_numbers(told))
        moments = [TimeStampedValue(1e9 + self.now - self.lag_s - age, 0.0) for age in (2, 1, 0)]
        series = {
            key: {one: [*moments[:2], TimeStampedValue(moments[2].timestamp, value)] for one in replicas}
            for key, value in numbers.items()
        }
        return AutoscalingContext(
            deployment_id=deployment(name),
            deployment_name=name,
            app_name="outrider",
            current_num_replicas=self.targets[name],
            target_num_replicas=self.targets[name],
            running_replicas=replicas,
            total_num_requests=self.requests,
            total_queued_requests=0.0,
            aggregated_metrics=None,
            raw_metrics=series,
            capacity_adjusted_min_replicas=0 if name.startswith("drafter") else 1,
            capacity_adjusted_max_replicas=4,
            policy_state={},
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=None,
            config=self.configs[name],
        )


def _config(options: dict[str, Any]) -> AutoscalingConfig:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Serve's own, about the interval of reports
        return AutoscalingConfig(**options)


def _shared(signals: Signals, replicas: int) -> Signals:
    if isinstance(signals, VerifierSignals):
        return replace(signals, running=signals.running / (replicas or 1))
    return None if signals is None else replace(signals, sessions=signals.sessions / (replicas or 1))


def test_pools_follow_their_signals_through_serves_own_wrapper() -> None:
    serve = Serve()
    assert serve.run(10) == {"verifier": 1, "drafter-eagle": 1, "gateway": 1, "registry": 1}
    serve.signals["verifier"] = VerifierSignals(running=6, capacity=8)
    assert serve.run(4)["verifier"] == 2
    serve.signals["verifier"] = VerifierSignals(running=1, capacity=8)
    serve.signals["drafter-eagle"] = DrafterSignals(sessions=5, capacity=8)
    assert serve.run(12) == {"verifier": 1, "drafter-eagle": 3, "gateway": 1, "registry": 1}


def test_gateways_follow_the_requests_that_serve_counts() -> None:
    serve = Serve()
    serve.requests = 25.0
    assert serve.steering({deployment("gateway"): serve.context("gateway")}) == {deployment("gateway"): 2.5}
    serve.requests = 0.0
    serve.now += 10
    assert serve.steering({deployment("gateway"): serve.context("gateway")}) == {deployment("gateway"): 1.0}


def test_a_replica_that_tells_nothing_changes_nothing() -> None:
    serve = Serve()
    serve.signals["verifier"] = None  # there is only what Serve adds itself
    serve.targets["verifier"] = 3
    assert serve.run(30)["verifier"] == 3


def test_old_reports_count_as_none() -> None:
    serve = Serve()
    serve.signals["verifier"] = VerifierSignals(running=8, capacity=8)
    serve.lag_s = 16.0  # silent_s is 15
    assert serve.run(30)["verifier"] == 1


def test_a_failure_keeps_all_numbers_and_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    serve = Serve()
    broken = serve.context("verifier")
    broken.running_replicas = None  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR, "ray.serve"):
        for _ in range(50):
            serve.now += 1
            assert serve.steering({deployment("verifier"): broken}) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "numbers of replicas stay as they are: the scaling policy failed"
    ]


def test_wrong_settings_scale_nothing_and_say_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "ray.serve"):
        serve = Serve({"verifier": {"price": 0}})
    assert serve.run(5) == {"verifier": 1, "drafter-eagle": 1, "gateway": 1, "registry": 1}
    assert "policy_kwargs: verifier.price" in caplog.text


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"verifier": {"prize": 1}}, "verifier"),
        ({"drafters": {"eagle": {"price": "much"}}}, "drafters.eagle.price"),
        ({"worth": {"window_s": 0}}, "worth.window_s"),
    ],
)
def test_errors_name_the_setting(given: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=rf"policy_kwargs: {what}"):
        read_settings(given)


def test_changes_are_logged_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    serve = Serve()
    with caplog.at_level(logging.INFO, "ray.serve"):
        serve.run(5)
        serve.signals["verifier"] = VerifierSignals(running=6, capacity=8)
        serve.run(4)
    lines = [record.getMessage() for record in caplog.records if "verifier" in record.getMessage()]
    assert lines[-1].startswith("scaling: verifier 1 -> 2: ")
    assert "4.0 a verifier" in lines[-1]
    assert len(lines) <= 2  # that it is wanted, and that it comes


def test_serve_can_send_it_to_its_controller() -> None:
    policy = AutoscalingPolicy(
        policy_function="outrider.rayserve.autoscaling:ApplicationPolicy", policy_kwargs=SETTINGS
    )
    sent = policy.get_serialized_policy_def()
    assert sent is not None
    assert b"torch" not in sent
    received = cloudpickle.loads(sent)
    assert received(**SETTINGS)({}) == ({}, {})
    assert pickle.dumps(policy.policy_kwargs)
    assert ApplicationPolicy.__name__ == received.__name__
