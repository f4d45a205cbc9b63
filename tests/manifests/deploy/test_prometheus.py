"""Rules and alerts: Prometheus takes them, they ask for what exists, and each alert fires when it should."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.core import errors
from outrider.core.errors import OutriderError, describe
from tests.manifests.deploy.promql import HERE, ROOT, RULES, known_series, problems, rules

PROMETHEUS = ROOT / "deploy" / "prometheus"
RUNBOOKS = ROOT / "docs" / "alerts.md"
CASES = sorted((HERE / "alerts").glob("*.yaml"))
ALERTS = [rule for rule in rules() if "alert" in rule]
NOT_OURS = {"deadline"}
"""Errors of status 500 and above that a client can bring about by itself: a deadline that is too short."""

Promtool = Callable[..., str]


def alert_cases() -> list[dict[str, Any]]:
    files = [yaml.safe_load(path.read_text("utf-8")) for path in CASES]
    return [case for file in files for test in file["tests"] for case in test["alert_rule_test"]]


def test_prometheus_takes_its_configuration(promtool: Promtool) -> None:
    promtool("check", "config", PROMETHEUS / "prometheus.yaml")


def test_prometheus_takes_all_rules(promtool: Promtool) -> None:
    assert promtool("check", "rules", *RULES).count("SUCCESS") == len(RULES)


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should(promtool: Promtool, cases: Path) -> None:
    promtool("test", "rules", cases)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_each_alert_has_a_case_that_fires_and_a_quiet_one(alert: dict[str, Any]) -> None:
    cases = [bool(case["exp_alerts"]) for case in alert_cases() if case["alertname"] == alert["alert"]]
    assert set(cases) == {True, False}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_ask_for_what_exists(rule: dict[str, Any]) -> None:
    assert problems(rule["expr"], known_series()) == []


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_each_alert_says_how_bad_it_is_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert len(notes["summary"]) <= 80
    assert notes["runbook_url"] == f"docs/alerts.md#{alert['alert'].lower()}"
    headings = re.findall(r"^#+ (\w+)$", RUNBOOKS.read_text("utf-8"), re.MULTILINE)
    assert alert["alert"] in headings


def test_names_are_used_once() -> None:
    used = Counter(rule.get("alert") or rule["record"] for rule in rules())
    assert [name for name, times in used.items() if times > 1] == []


def test_the_error_rate_counts_every_error_of_ours() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    described = [describe(kind.__new__(kind)) for kind in classes if issubclass(kind, OutriderError)]
    ours = {one.label for one in described if one.http_status >= 500} - NOT_OURS
    [rule] = [one for one in rules() if one.get("record") == "model:outrider_requests_failed:ratio_rate5m"]
    [counted] = re.findall(r'outcome=~"([a-z_|]+)"', rule["expr"])
    assert set(counted.split("|")) == ours


def test_metrics_of_ray_serve_are_those_of_the_installed_version() -> None:
    found = importlib.util.find_spec("ray")
    assert found is not None and found.origin is not None
    sources = (Path(found.origin).parent / "serve" / "_private").glob("*.py")
    made = {name for path in sources for name in re.findall(r'"(serve_[a-z_]+)"', path.read_text("utf-8"))}
    used = yaml.safe_load((HERE / "foreign_metrics.yaml").read_text("utf-8"))
    plain = {
        name.removeprefix("ray_").removesuffix("_total") for name in used if name.startswith("ray_serve")
    }
    # Names that Serve puts together, such as serve_num_{protocol}_requests, do not stand there.
    assert plain - made <= {"serve_num_http_requests"}


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("rate(outrider_open_streams[5m])", "rate of outrider_open_streams, which is a gauge"),
        ("outrider_streams", "there is no outrider_streams"),
        ('outrider_open_streams{drafter="x"}', "outrider_open_streams has no label drafter"),
        ("sum by (part) (outrider_open_streams)", "outrider_open_streams has no label part"),
        ("outrider_round_part_seconds", "there is no outrider_round_part_seconds"),
        (
            "histogram_quantile(0.5, sum(rate(outrider_round_part_seconds_bucket[5m])))",
            "histogram_quantile without buckets by le",
        ),
        (
            "max_over_time(outrider_rounds_total[5m])",
            "max_over_time of outrider_rounds_total, which is no gauge",
        ),
    ],
)
def test_what_a_query_may_not_ask(query: str, problem: str) -> None:
    assert problems(query, known_series()) == [problem]
