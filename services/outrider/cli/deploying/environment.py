"""Environment variables of Ray. They act only if they are set before it is imported: nothing here does so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from outrider.config.processes import ENVIRONMENT
from outrider.config.schema import TelemetryConfig
from outrider.config.yaml_text import parse_mapping, text_of
from outrider.core.errors import ConfigError

CLUSTERS = ("RAY_DASHBOARD_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Variables that say where a cluster is, the first one that is set."""
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TOKEN_FILE = Path("~/.ray/auth_token")

_LOCAL = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray listen at the loopback, on Linux too
    "RAY_worker_niceness": "0",  # Ray's own 15 starves replicas wherever anything else runs
    "RAY_prestart_worker_first_driver": "0",  # idle processes, which nothing here would use
    "RAY_DEDUP_LOGS": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # few cores are busy while all start at once
    "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1",  # what does not start at first will not later
}


def prepare(path: Path | None, *, local: bool) -> None:
    """Set what the user has not set.

    Args:
        path: the file that is to be deployed.
        local: a cluster of our own may be started, whose processes get their environment from this one.
    """
    _default({"RAY_USAGE_STATS_ENABLED": "0"})  # or each cluster reports itself to Ray's makers
    if local:
        _default(ENVIRONMENT | _LOCAL | _tracing(path))
    elif any(os.environ.get(name) for name in _TOKENS) or _TOKEN_FILE.expanduser().is_file():
        _default({"RAY_AUTH_MODE": "token"})


def _default(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _tracing(path: Path | None) -> dict[str, str]:
    """Serve's own spans go where ours go."""
    telemetry = _telemetry_in(path)
    if not telemetry.otlp_endpoint:
        return {}
    return {
        "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": "outrider.rayserve.tracing:span_processors",
        "RAY_SERVE_TRACING_SAMPLING_RATIO": str(telemetry.sample_ratio),
        "OTEL_EXPORTER_OTLP_ENDPOINT": telemetry.otlp_endpoint,
        "OTEL_SERVICE_NAME": "ray-serve",
    }


def _telemetry_in(path: Path | None) -> TelemetryConfig:
    """That of the first application in the file which has one. What is wrong with it is said elsewhere."""
    try:
        data: dict[str, Any] = {} if path is None else parse_mapping(text_of(path), str(path))
        for application in data["applications"]:
            if "telemetry" in application["args"]["config"]:
                return TelemetryConfig.model_validate(application["args"]["config"]["telemetry"])
    except (ConfigError, ValidationError, KeyError, TypeError):
        pass
    return TelemetryConfig()
