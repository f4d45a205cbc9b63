"""One Ray cluster for all tests of Ray Serve, and on it one application of tiny models that they share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.rayserve.policy import POLICY
from tests.otlp_sink import OtlpSink
from tests.serve_cluster import ServeApp, ServeCluster
from tests.stack import tiny_config

SMALL = {"cpus": 0.1}


@pytest.fixture(scope="session")
def cluster(sink: OtlpSink) -> Iterator[ServeCluster]:
    """The cluster. Spans of Ray Serve itself go to `sink` too."""
    tracing = {
        "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": "outrider.rayserve.tracing:span_processors",
        "RAY_SERVE_TRACING_SAMPLING_RATIO": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
        "OTEL_SERVICE_NAME": "ray-serve",
    }
    with ServeCluster(tracing) as running:
        yield running


@pytest.fixture(scope="session")
def tiny_args(tmp_path_factory: pytest.TempPathFactory, sink: OtlpSink) -> dict[str, Any]:
    """Arguments of `tiny_app`: a tiny target, itself as its draft, prompt lookup."""
    config = tiny_config(tmp_path_factory.mktemp("tiny-serve"))
    del config["drafters"]["other"]
    config["verifier"]["drain_s"] = 0.3  # what still runs then is handed over
    config["gateway"] = {"failover_s": 180.0}  # a verifier takes its time to start on two busy cores
    config["telemetry"] = {"otlp_endpoint": sink.endpoint}
    pools = {"gateway": SMALL, "verifier": SMALL, "drafters": {"twin": SMALL, "lookup": SMALL}}
    return {"config": config, "pools": pools, "loopback": True}


@pytest.fixture(scope="session")
def shared_app(cluster: ServeCluster, tiny_args: dict[str, Any]) -> ServeApp:
    """The application, once: use `tiny_app`."""
    return cluster.deploy(tiny_args, autoscaling_policy=POLICY)


@pytest.fixture
def tiny_app(shared_app: ServeApp, tiny_args: dict[str, Any]) -> Iterator[ServeApp]:
    """The application with one replica of each deployment."""
    if shared_app.args != tiny_args:
        shared_app.cluster.deploy(tiny_args, autoscaling_policy=POLICY)
    elif shared_app.overridden:
        shared_app.scale(verifier=1, drafter_twin=1, drafter_lookup=1, gateway=1)
    yield shared_app
