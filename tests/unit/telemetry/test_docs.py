"""docs/operations.md tells of every metric, by its name, kind and labels, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

from outrider.telemetry.names import METRICS

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
ROW = re.compile(r"^\| `(outrider_\w+)` \| (\w+) \| (.*?) \| (.*?) \|", re.MULTILINE)


def test_the_page_lists_all_metrics_with_their_labels_and_meaning() -> None:
    rows = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in ROW.findall(PAGE.read_text("utf-8"))
    }
    assert rows == {metric.name: (metric.kind, metric.labels, metric.help) for metric in METRICS}


def test_every_metric_that_the_page_speaks_of_exists() -> None:
    known = {metric.name for metric in METRICS}
    assert set(re.findall(r"`(outrider_\w+)", PAGE.read_text("utf-8"))) <= known
