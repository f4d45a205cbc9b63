"""What each call does to the page."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from outrider.core.errors import ConfigError
from outrider.telemetry import names
from outrider.telemetry.metrics import (
    DrafterMetrics,
    GatewayMetrics,
    VerifierMetrics,
    exposition,
    serve_metrics,
)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, metric: names.Metric, suffix: str = "", **labels: str) -> float | None:
    return registry.get_sample_value(metric.name + suffix, {names.LABEL_MODEL: "m", **labels})


def test_rounds_count_as_vllm_counts_them(registry: CollectorRegistry) -> None:
    metrics = VerifierMetrics(registry, "m")
    metrics.round(drafted=4, accepted=3, drafter="d", run_ahead_hit=True)
    metrics.round(drafted=4, accepted=1, drafter="d")
    metrics.round(drafted=2, accepted=0, drafter="d")
    metrics.round(drafted=0, accepted=0)
    assert value(registry, names.SPEC_DRAFTS) == 3
    assert value(registry, names.SPEC_DRAFT_TOKENS) == 10
    assert value(registry, names.SPEC_ACCEPTED) == 4
    per_position = [value(registry, names.SPEC_ACCEPTED_PER_POS, position=str(i)) for i in range(4)]
    assert per_position == [2, 1, 1, None]
    assert value(registry, names.ROUNDS, kind="plain") == 1
    assert value(registry, names.ROUNDS, kind="speculative") == 3
    assert value(registry, names.RUN_AHEAD_HITS, drafter="d") == 1


def test_one_link_state_at_a_time(registry: CollectorRegistry) -> None:
    metrics = VerifierMetrics(registry, "m")
    for state in names.LINK_STATES:
        metrics.link_state("d", "d@h:1", state)
        metrics.link_state("d", "d@h:2", "ready")
        for link, expected in (("d@h:1", state), ("d@h:2", "ready")):
            labels = {"drafter": "d", "link": link}
            ones = [s for s in names.LINK_STATES if value(registry, names.LINK_STATE, **labels, state=s)]
            assert ones == [expected]


def test_a_link_that_is_gone_is_not_on_the_page(registry: CollectorRegistry) -> None:
    metrics = VerifierMetrics(registry, "m")
    metrics.link_state("d", "d@h:1", "down")
    metrics.link_gone("d", "d@h:1")
    metrics.link_gone("d", "d@h:2")
    assert b"d@h:1" not in exposition(registry)[0]


def test_verifier_counts(registry: CollectorRegistry) -> None:
    metrics = VerifierMetrics(registry, "m")
    metrics.load(running=2, waiting=1, kv_usage=0.5)
    metrics.admitted(waited_s=0.1, prompt_tokens=10, cached_tokens=4)
    metrics.preempted()
    metrics.missed("d")
    metrics.dropped("d", "epoch")
    metrics.step_time("forward", 0.01)
    assert value(registry, names.REQUESTS_RUNNING) == 2
    assert value(registry, names.REQUESTS_WAITING) == 1
    assert value(registry, names.KV_USAGE) == 0.5
    assert value(registry, names.PREFIX_QUERIES) == 10
    assert value(registry, names.PREFIX_HITS) == 4
    assert value(registry, names.QUEUE_TIME, "_count") == 1
    assert value(registry, names.PREEMPTIONS) == 1
    assert value(registry, names.PROPOSALS_MISSED, drafter="d") == 1
    assert value(registry, names.PROPOSALS_DROPPED, drafter="d", reason="epoch") == 1
    assert value(registry, names.ROUND_PART_TIME, "_sum", part="forward") == 0.01


def test_store_counts(registry: CollectorRegistry) -> None:
    store = VerifierMetrics(registry, "m").store
    store.pending(3)
    store.degraded(True)
    store.error("store_unavailable")
    store.dropped(2)
    store.written(3, 0.002)
    assert value(registry, names.STORE_PENDING) == 3
    assert value(registry, names.STORE_DEGRADED) == 1
    assert value(registry, names.STORE_ERRORS, reason="store_unavailable") == 1
    assert value(registry, names.STORE_DROPPED) == 2
    assert value(registry, names.STORE_WRITE_TIME, "_count") == 1


def test_gateway_counts(registry: CollectorRegistry) -> None:
    metrics = GatewayMetrics(registry, "m")
    metrics.stream_opened(prompt_tokens=12)
    assert value(registry, names.OPEN_STREAMS) == 1
    metrics.first_token(0.2)
    metrics.first_tokens(2)
    metrics.tokens(4, 0.2)
    metrics.tokens(0, 0.2)
    metrics.finished("stop", 1.5)
    metrics.stream_closed()
    metrics.request("/v1/completions", "ok")
    assert value(registry, names.OPEN_STREAMS) == 0
    assert value(registry, names.PROMPT_TOKENS) == 12
    assert value(registry, names.GENERATION_TOKENS) == 6
    assert value(registry, names.TIME_TO_FIRST_TOKEN, "_count") == 1
    # Four tokens in 0.2 s: each took its share.
    assert value(registry, names.INTER_TOKEN_LATENCY, "_count") == 4
    assert value(registry, names.INTER_TOKEN_LATENCY, "_sum") == pytest.approx(0.2)
    assert value(registry, names.E2E_LATENCY, "_sum") == 1.5
    assert value(registry, names.REQUEST_SUCCESS, finished_reason="stop") == 1
    assert value(registry, names.REQUESTS, route="/v1/completions", outcome="ok") == 1


class _Verifiers:
    states = ("ready", "away")
    registry_degraded = False


def test_verifiers_are_asked_for_each_time(registry: CollectorRegistry) -> None:
    metrics, verifiers = GatewayMetrics(registry, "m"), _Verifiers()
    metrics.watch(verifiers)

    def counted() -> list[float | None]:
        return [value(registry, names.VERIFIERS, state=state) for state in names.VERIFIER_STATES]

    assert counted() == [1, 0, 1, 0]
    assert value(registry, names.REGISTRY_DEGRADED) == 0
    verifiers.states, verifiers.registry_degraded = ("ready", "draining", "refused", "ready"), True
    assert counted() == [2, 1, 0, 1]
    assert value(registry, names.REGISTRY_DEGRADED) == 1


def test_drafter_counts(registry: CollectorRegistry) -> None:
    metrics = DrafterMetrics(registry, "m")
    metrics.proposal(tokens=4, seconds=0.01, run_ahead_hit=True)
    metrics.proposal(tokens=2, seconds=0.01, run_ahead_hit=False)
    metrics.stale("unknown")
    metrics.load(sessions=3, queued=1, kv_usage=0.25)
    metrics.evicted()
    metrics.batch(3)
    assert value(registry, names.DRAFTER_PROPOSALS) == 2
    assert value(registry, names.DRAFTER_TOKENS) == 6
    assert value(registry, names.DRAFTER_RUN_AHEAD_HITS) == 1
    assert value(registry, names.DRAFTER_STALE, reason="unknown") == 1
    assert value(registry, names.DRAFTER_SESSIONS) == 3
    assert value(registry, names.DRAFTER_QUEUED) == 1
    assert value(registry, names.DRAFTER_KV_USAGE) == 0.25
    assert value(registry, names.DRAFTER_EVICTIONS) == 1
    assert value(registry, names.DRAFTER_BATCH, "_count") == 1


def test_the_page_is_served_and_parsed(registry: CollectorRegistry) -> None:
    DrafterMetrics(registry, "m")
    server = serve_metrics(registry, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=30) as page:
            families = {family.name for family in text_string_to_metric_families(page.read().decode())}
        assert {"outrider_drafter_proposals", "outrider_drafter_sessions"} <= families
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"cannot serve metrics on 127.0.0.1:{port}"):
            serve_metrics(CollectorRegistry(), "127.0.0.1", port)
    finally:
        server.close()


def test_the_page_in_the_format_that_is_asked_for(registry: CollectorRegistry) -> None:
    GatewayMetrics(registry, "m")
    page, content_type = exposition(registry)
    assert content_type.startswith("text/plain")
    assert b"outrider_open_streams" in page
    page, content_type = exposition(registry, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")
