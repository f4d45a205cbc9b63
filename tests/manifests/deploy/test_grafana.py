"""Dashboards: what Grafana needs is there, and every query asks for metrics and labels that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import promql_parser as promql
import pytest
import yaml

from outrider.telemetry.names import METRICS
from tests.manifests.deploy.promql import (
    ROOT,
    known_series,
    metrics_of,
    problems,
    produced,
    rules,
    substituted,
)

GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = {
    path.stem: json.loads(path.read_text("utf-8")) for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}
KNOWN = known_series()
UNITS = {"none", "short", "s", "ms", "ops", "reqps", "percent", "percentunit", "Bps"}
COLUMNS = 24


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> Iterator[Any]:
    for name, dashboard in DASHBOARDS.items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                case = f"{name}/{panel['title']}/{target['refId']}"
                yield pytest.param(target["expr"], target["legendFormat"], id=case)
        for note in dashboard["annotations"]["list"]:
            yield pytest.param(note["expr"], "__auto", id=f"{name}/{note['name']}")


def test_they_are_what_the_script_makes() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "make_dashboards.py"), "--check"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize(("query", "legend"), list(queries()))
def test_each_query_asks_for_what_exists(query: str, legend: str) -> None:
    assert problems(substituted(query), KNOWN) == []
    named = set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert named <= produced(substituted(query), KNOWN)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_an_id_a_unit_a_text_and_room(name: str) -> None:
    dashboard = DASHBOARDS[name]
    ids = Counter(panel["id"] for panel in dashboard["panels"])
    assert [number for number, times in ids.items() if times > 1] == []
    titles = Counter(panel["title"] for panel in panels(dashboard))
    assert [title for title, times in titles.items() if times > 1] == []
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= COLUMNS
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels(dashboard):
        assert len(panel["description"]) >= 10
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_reader_chooses_the_data_source_and_the_model(name: str) -> None:
    dashboard = DASHBOARDS[name]
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    text = json.dumps(dashboard)
    assert set(re.findall(r"\$\{?([a-z]\w*)\}?", text)) == set(variables)
    for panel in panels(dashboard):
        used = {panel["datasource"]["uid"], *(target["datasource"]["uid"] for target in panel["targets"])}
        assert used == {"${datasource}"}
    for variable in list(variables.values())[1:]:
        [(selector, label)] = re.findall(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert problems(f"count by ({label}) ({substituted(selector)})", KNOWN) == []
    assert ("model" in variables) == (name != "serve")


def test_every_metric_is_on_a_dashboard() -> None:
    shown = {
        metric
        for dashboard in DASHBOARDS.values()
        for panel in panels(dashboard)
        for target in panel["targets"]
        for metric in metrics_of(substituted(target["expr"]))
    }
    shown = {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in shown}
    assert {metric.name for metric in METRICS} - shown == set()


def test_every_alert_is_told_by_a_panel() -> None:
    text = " ".join(panel["description"] for board in DASHBOARDS.values() for panel in panels(board))
    told = set(re.findall(r"Outrider[A-Z]\w+", text))
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert told <= alerts
    assert alerts - told <= {"OutriderTargetDown"}  # Prometheus' own page of targets shows it


def test_provisioning_finds_dashboards_and_data_sources() -> None:
    sources = _provisioned("datasources")["datasources"]
    uids = {source["uid"] for source in sources}
    for dashboard in DASHBOARDS.values():
        chosen = dashboard["templating"]["list"][0]["current"]["value"]
        links = " ".join(unquote(link.get("url", "")) for link in dashboard["links"])
        assert {chosen, *re.findall(r'"datasource":"([^"]+)"', links)} <= uids
    [traces] = [
        one for source in sources for one in source["jsonData"].get("exemplarTraceIdDestinations", [])
    ]
    assert traces["datasourceUid"] in uids
    [provider] = _provisioned("dashboards")["providers"]
    compose = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text("utf-8"))
    mounted = {volume.split(":")[1] for volume in compose["services"]["grafana"]["volumes"]}
    assert provider["options"]["path"] in mounted


def test_queries_are_checked_at_all() -> None:
    assert promql.parse(substituted('rate(x{model_name=~"$model"}[$__rate_interval])'))
    assert len(list(queries())) > 70


def _provisioned(kind: str) -> dict[str, Any]:
    [path] = (GRAFANA / "provisioning" / kind).glob("*.yaml")
    loaded: dict[str, Any] = yaml.safe_load(Path(path).read_text("utf-8"))
    return loaded
