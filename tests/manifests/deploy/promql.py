"""Queries read and checked: that each metric and label exists, and that functions fit its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from outrider.telemetry import names

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RULES = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yaml"))

OF_COUNTERS = {"rate", "irate", "increase"}
OF_GAUGES = {"min_over_time", "max_over_time", "avg_over_time", "delta", "deriv"}
TARGET = frozenset({"instance", "job", "role", "name"})
"""Labels that scraping adds (deploy/prometheus/prometheus.yaml, and what gateways list)."""


@dataclass(frozen=True)
class Series:
    """What may be asked of a sample's name."""

    kind: str  # "counter" or "gauge" as functions see it; "bucket"
    labels: frozenset[str]


def known_series() -> dict[str, Series]:
    """Every sample name that rules and dashboards may use."""
    series = {"up": Series("gauge", TARGET)}
    for metric in names.METRICS:
        series |= _samples(metric.name, metric.kind, TARGET | {names.LABEL_MODEL, *metric.labels})
    for metric in names.SCALING_METRICS:  # Ray serves them
        series |= _samples(f"ray_{metric.name}", metric.kind, frozenset({"instance", "job", *metric.labels}))
    for name, (kind, *labels) in yaml.safe_load((HERE / "foreign_metrics.yaml").read_text()).items():
        series |= _samples(name, kind, frozenset(labels) | {"instance", "job"})
    for rule in rules():
        if "record" in rule:
            series[rule["record"]] = Series("gauge", produced(rule["expr"], series))
    return series


def rules() -> list[dict[str, Any]]:
    """All recording and alerting rules."""
    files = [yaml.safe_load(path.read_text("utf-8")) for path in RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def problems(query: str, known: Mapping[str, Series]) -> list[str]:
    """What is wrong with a query; raises ValueError if it is no PromQL."""
    return list(_problems(promql.parse(query), known, "", frozenset()))


def produced(query: str, known: Mapping[str, Series]) -> frozenset[str]:
    """The labels that a query's result may have."""
    return _produced(promql.parse(query), known)


def metrics_of(query: str) -> set[str]:
    """Names of the samples that a query reads."""
    return {selector.name for selector, _ in _selectors(promql.parse(query))}


def substituted(query: str) -> str:
    """A dashboard's query as Grafana would send it."""
    for variable, value in (("__rate_interval", "5m"), ("__range", "1h"), ("__interval", "1m")):
        query = query.replace(f"${variable}", value).replace(f"${{{variable}}}", value)
    return re.sub(r"\$\{?[a-z_]+\}?", ".*", query)


def _samples(name: str, kind: str, labels: frozenset[str]) -> dict[str, Series]:
    if kind != "histogram":
        return {name: Series(kind, labels)}
    return {
        f"{name}_bucket": Series("bucket", labels | {"le"}),
        f"{name}_sum": Series("counter", labels),
        f"{name}_count": Series("counter", labels),
    }


def _children(node: Any) -> list[Any]:
    """The parts of a part of a query that are themselves queries."""
    match node:
        case promql.MatrixSelector():
            return [node.vector_selector]
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return [node.expr]
        case promql.Call():
            return list(node.args)
        case promql.BinaryExpr():
            return [node.lhs, node.rhs]
        case promql.VectorSelector() | promql.NumberLiteral() | promql.StringLiteral():
            return []
        case _:
            raise ValueError(f"cannot read {type(node).__name__}")


def _named(node: Any) -> frozenset[str]:
    """The labels that an aggregation names; of anything else, none."""
    aggregates = isinstance(node, promql.AggregateExpr) and node.modifier
    return frozenset(node.modifier.labels) if aggregates else frozenset()


def _problems(node: Any, known: Mapping[str, Series], function: str, kept: frozenset[str]) -> Iterator[str]:
    """Those of a part of a query; `kept`: labels that aggregations around it name."""
    if isinstance(node, promql.VectorSelector):
        yield from _of_selector(node, known, function, kept)
    if isinstance(node, promql.Call):
        function = node.func.name
        if function == "histogram_quantile" and not _has_buckets(node, known):
            yield "histogram_quantile without buckets by le"
    for child in _children(node):
        yield from _problems(child, known, function, kept | _named(node))


def _of_selector(
    node: Any, known: Mapping[str, Series], function: str, kept: frozenset[str]
) -> Iterator[str]:
    series = known.get(node.name)
    if series is None:
        yield f"there is no {node.name}"
        return
    labels = {matcher.name for matcher in node.matchers.matchers}
    for label in sorted((labels | kept) - series.labels):
        yield f"{node.name} has no label {label}"
    if function in OF_COUNTERS and series.kind == "gauge":
        yield f"{function} of {node.name}, which is a gauge"
    if function in OF_GAUGES and series.kind != "gauge":
        yield f"{function} of {node.name}, which is no gauge"


def _has_buckets(node: Any, known: Mapping[str, Series]) -> bool:
    inside = list(_selectors(node.args[1]))
    return bool(inside) and all(
        known.get(selector.name, Series("", TARGET)).kind == "bucket" and "le" in kept
        for selector, kept in inside
    )


def _selectors(node: Any, kept: frozenset[str] = frozenset()) -> Iterator[tuple[Any, frozenset[str]]]:
    """Each with the labels that aggregations around it keep."""
    if isinstance(node, promql.VectorSelector):
        yield node, kept
    for child in _children(node):
        yield from _selectors(child, kept | _named(node))


def _produced(node: Any, known: Mapping[str, Series]) -> frozenset[str]:
    match node:
        case promql.AggregateExpr():
            return _named(node)
        case promql.VectorSelector():
            return known.get(node.name, Series("", frozenset())).labels
        case promql.Call() if node.func.name == "histogram_quantile":
            return _produced(node.args[1], known) - {"le"}
        case _:
            return frozenset().union(*(_produced(child, known) for child in _children(node)))
