"""Panels, rows, variables and whole dashboards, as the JSON that Grafana 12 reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

Json = dict[str, Any]

SCHEMA = 41
COLUMNS = 24
TAG = "outrider"
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
TRACES: Json = {"type": "jaeger", "uid": "outrider-jaeger"}


@dataclass(frozen=True)
class Query:
    """One line, or group of lines, of a panel."""

    expr: str
    legend: str = ""
    exemplars: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel. `alerts`: those that go off on what it shows; their names go into its description."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    alerts: tuple[str, ...] = ()
    width: int = 8
    height: int = 7
    stacked: bool = False
    bounds: tuple[tuple[float, str], ...] = ()  # (from, colour), for stats
    mappings: dict[str, str] = field(default_factory=dict)  # value -> text
    maximum: float | None = None

    def json(self, number: int, x: int, y: int) -> Json:
        """The panel at its place."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self._described(),
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [self._target(query, index) for index, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": self._options(),
        }

    def _described(self) -> str:
        if not self.alerts:
            return self.description
        return f"{self.description} Alerts: {', '.join(self.alerts)}; what to do: docs/alerts.md."

    @staticmethod
    def _target(query: Query, index: int) -> Json:
        return {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "range": True,
            "exemplar": query.exemplars,
        }

    def _defaults(self) -> Json:
        steps: list[Json] = [{"color": "green", "value": None}]
        steps += [{"color": colour, "value": value} for value, colour in self.bounds]
        defaults: Json = {"unit": self.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
        if self.maximum is not None:
            defaults["max"] = self.maximum
        if self.mappings:
            shown = {
                value: {"text": text, "index": i} for i, (value, text) in enumerate(self.mappings.items())
            }
            defaults["mappings"] = [{"type": "value", "options": shown}]
        if self.kind == "timeseries":
            defaults["custom"] = {
                "drawStyle": "line",
                "fillOpacity": 40 if self.stacked else 8,
                "showPoints": "never",
                "stacking": {"mode": "normal" if self.stacked else "none"},
            }
        return defaults

    def _options(self) -> Json:
        if self.kind == "stat":
            calculated = {"calcs": ["lastNotNull"], "values": False, "fields": ""}
            return {"reduceOptions": calculated, "colorMode": "value", "graphMode": "area"}
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }


def stat(title: str, description: str, unit: str, expr: str, **more: Any) -> Panel:
    """One large number."""
    return Panel(title, description, unit, (Query(expr),), "stat", **{"width": 3, "height": 4, **more})


def lines(title: str, description: str, unit: str, *queries: Query, **more: Any) -> Panel:
    """Lines over time."""
    return Panel(title, description, unit, queries, **more)


@dataclass(frozen=True)
class Row:
    """Panels under a heading, laid out from left to right."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """What the reader may choose, out of a label's values."""

    name: str
    label: str
    of: str  # a selector whose series have the label

    def json(self) -> Json:
        """As a query of the data source; everything is chosen at first."""
        query = f"label_values({self.of}, {self.label})"
        return {
            "name": self.name,
            "label": self.name.capitalize(),
            "type": "query",
            "datasource": DATASOURCE,
            "definition": query,
            "query": {"query": query, "refId": "values"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


@dataclass(frozen=True)
class Dashboard:
    """A page."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    def json(self) -> Json:
        """The whole file."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": [_alerts()]},
            "links": [_others(), _traces()],
            "templating": {"list": [_datasource(), *(variable.json() for variable in self.variables)]},
            "panels": self._panels(),
        }

    def _panels(self) -> list[Json]:
        made: list[Json] = []
        y = 0
        for row in self.rows:
            heading = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
            made.append(
                {"id": len(made) + 1, "type": "row", "title": row.title, "gridPos": heading, "panels": []}
            )
            x, y, tallest = 0, y + 1, 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y, tallest = 0, y + tallest, 0
                made.append(panel.json(len(made) + 1, x, y))
                x, tallest = x + panel.width, max(tallest, panel.height)
            y += tallest
        return made


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {"text": "Prometheus", "value": "outrider-prometheus"},
    }


def _alerts() -> Json:
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertname=~"Outrider.*", alertstate="firing"}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{severity}}",
    }


def _others() -> Json:
    return {
        "title": "Outrider",
        "type": "dashboards",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }


def _traces() -> Json:
    search = {"queryType": "search", "service": "outrider-gateway"}
    pane = json.dumps({"datasource": TRACES["uid"], "queries": [search]}, separators=(",", ":"))
    return {
        "title": "Traces",
        "type": "link",
        "icon": "external link",
        "tooltip": "Search traces of requests in Jaeger",
        "url": f"/explore?left={quote(pane)}",
        "targetBlank": True,
    }
