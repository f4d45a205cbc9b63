"""Everything that is registered is declared in names.py, and nothing else spells a name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import outrider
from outrider.telemetry import names
from outrider.telemetry.metrics import DrafterMetrics, GatewayMetrics, VerifierMetrics

SERVICES = [GatewayMetrics, VerifierMetrics, DrafterMetrics]
SOURCES = sorted(Path(outrider.__file__).parent.rglob("*.py"))


def registered(*services: type) -> dict[str, str]:
    """Exposed name -> kind, as a registry has them."""
    registry = CollectorRegistry()
    for service in services:
        service(registry, "m")
    suffix = {"counter": "_total"}
    return {metric.name + suffix.get(metric.type, ""): metric.type for metric in registry.collect()}


def test_declared_and_registered_metrics_are_the_same() -> None:
    declared = {metric.name: metric.kind for metric in names.METRICS}
    assert len(declared) == len(names.METRICS)
    assert registered(*SERVICES) == declared


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_can_have_a_registry_of_its_own(service: type) -> None:
    assert registered(service)


@pytest.mark.parametrize("metric", names.METRICS, ids=lambda metric: metric.name)
def test_metric_names_follow_prometheus_habits(metric: names.Metric) -> None:
    assert re.fullmatch(r"outrider_[a-z][a-z0-9_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert not metric.help[0].islower()
    # Nothing that grows with traffic may be a label.
    assert not {"session", "session_id", "request_id", "user"} & set(metric.labels)


def test_vllm_suffixes_are_offered() -> None:
    exposed = {metric.name.removeprefix("outrider_") for metric in names.METRICS}
    assert exposed >= {
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
        "num_preemptions_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
    }


def test_spans_and_attributes() -> None:
    assert {"verify.request", "round", "draft", "verify", "commit"} == names.SPANS
    assert names.gateway_span(names.OPERATION_CHAT, "tiny") == "chat tiny"
    for attribute in names.ATTRIBUTES:
        assert re.fullmatch(r"(gen_ai|outrider|error)\.[a-z_.]+", attribute)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_other_module_spells_a_name(source: Path) -> None:
    if source.name == "names.py":
        return
    text = source.read_text("utf-8")
    spelled = {metric.name for metric in names.METRICS} | {name for name in names.ATTRIBUTES if "." in name}
    assert [name for name in sorted(spelled) if f'"{name}"' in text or f"'{name}'" in text] == []
