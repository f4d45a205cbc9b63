"""Writes rows: as JSON lines with provenance, and as a table for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

from outrider.benchmark.measure import Row
from outrider.benchmark.workload import OFF


def write_rows(path: Path, rows: Sequence[Row], provenance: Mapping[str, Any]) -> None:
    """One JSON object a line: the row's fields and, under `provenance`, where it comes from."""
    lines = (json.dumps({**asdict(row), "provenance": provenance}) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def speed_up(row: Row, rows: Sequence[Row]) -> float | None:
    """Tokens per second over those of the same category and concurrency with speculation off."""
    for other in rows:
        if (other.drafter, other.category, other.concurrency) == (OFF, row.category, row.concurrency):
            return row.tokens_per_second / other.tokens_per_second if other.tokens_per_second else None
    return None


COLUMNS = (
    *("conc.", "category", "drafter", "tokens", "tok/s", "x off", "TTFT ms", "ITL p50", "ITL p99"),
    *("tok/round", "accepted", "identical"),
)


def table_of(rows: Sequence[Row], title: str = "") -> Table:
    """The rows as a table, the drafters of a category under each other."""
    table = Table(title=title or None, box=SIMPLE_HEAD, padding=(0, 1))
    for name in COLUMNS:
        justify: Literal["left", "right"] = "left" if name in ("category", "drafter") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    before: tuple[int, str] | None = None
    for row in rows:
        place = (row.concurrency, row.category)
        if before not in (None, place):
            table.add_section()
        before = place
        table.add_row(*_cells(row, speed_up(row, rows)))
    return table


def _cells(row: Row, ratio: float | None) -> list[str]:
    accepted = f"{row.accepted / row.drafted:.0%}" if row.drafted else "-"
    identical = {True: "yes", False: "[bold red]NO[/]", None: "-"}[row.identical_to_off]
    return [
        str(row.concurrency),
        row.category,
        row.drafter,
        str(row.tokens),
        f"{row.tokens_per_second:.1f}",
        _number(ratio, 2),
        _number(row.ttft_ms_p50, 0),
        _number(row.itl_ms_p50, 1),
        _number(row.itl_ms_p99, 1),
        _number(row.tokens_per_round, 2),
        accepted,
        identical,
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
