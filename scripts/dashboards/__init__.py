"""Grafana's dashboards, written in Python and kept as JSON in deploy/grafana/dashboards.

- `queries`  PromQL from the metrics' declarations
- `panels`   panels, rows, variables and whole dashboards as JSON
- the rest   one dashboard each
"""
