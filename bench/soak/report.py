"""The findings of a soak: as JSON with provenance, and as a table for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.soak.journal import SHOWN, Fault, Journal
from bench.soak.sampling import Memory
from bench.soak.streams import Outcome
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

PAUSE_S, PAUSE_TIMES = 0.3, 5.0
"""A time without tokens counts as a pause if it is so long, and so many times as long as is usual in its
stream, ..."""
AFTER_S = 2.0
"""... and if a fault falls into it or was mended so short before."""


def pauses(outcomes: Sequence[Outcome], faults: Sequence[Fault]) -> dict[str, list[float]]:
    """For each kind of fault ("kill verifier"): pauses that clients saw, last token before to first after."""
    found: dict[str, list[float]] = {}
    for outcome in outcomes:
        gaps = list(zip(outcome.times, outcome.times[1:], strict=False))
        if not gaps:
            continue
        least = max(PAUSE_S, PAUSE_TIMES * median(after - before for before, after in gaps))
        for before, after in gaps:
            fault = _cause(before, after, faults) if after - before >= least else None
            if fault is not None:
                found.setdefault(kind_of(fault), []).append(after - before)
    return found


def _cause(before: float, after: float, faults: Sequence[Fault]) -> Fault | None:
    """Of the faults that may be why nothing came, the one that covers most of the time."""

    def covered(fault: Fault) -> float:
        return min(after, max(fault.mended, fault.began) + AFTER_S) - max(before, fault.began)

    return max((fault for fault in faults if covered(fault) >= 0), key=covered, default=None)


def kind_of(fault: Fault) -> str:
    """What was broken, without the number of the replica."""
    role, _, number = fault.target.rpartition("-")
    return f"{fault.kind} {role if number.isdecimal() else fault.target}"


def summary(
    journal: Journal,
    outcomes: Sequence[Outcome],
    memory: Sequence[Memory],
    counters: Mapping[str, float],
) -> dict[str, Any]:
    """Everything in numbers."""
    seen = pauses(outcomes, journal.faults)
    all_pauses = [pause for each in seen.values() for pause in each]
    counts = Counter(kind_of(fault) for fault in journal.faults)
    return {
        "streams": len(outcomes),
        "streams_by": dict(Counter(f"{one.api} {one.question.kind}" for one in outcomes)),
        "tokens": sum(one.tokens for one in outcomes),
        "client_resumes": sum(one.resumes for one in outcomes),
        "streams_resumed": sum(one.resumes > 0 for one in outcomes),
        "faults": {
            kind: {"count": count, **_spread(seen.get(kind, []))} for kind, count in sorted(counts.items())
        },
        "pauses_s": _spread(all_pauses),
        "counters": dict(counters),
        "memory": [{**asdict(one), "grows": one.grows} for one in memory],
        "violations": len(journal.violations),
        "violations_in_words": journal.violations[:SHOWN],
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"pauses": 0, "median": None, "longest": None}
    return {"pauses": len(values), "median": round(median(values), 3), "longest": round(max(values), 3)}


def write(path: Path, found: Mapping[str, Any]) -> None:
    """One JSON object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def show(console: Console, found: Mapping[str, Any]) -> None:
    """The tables."""
    faults = _table("Faults", "fault", "times", "pauses seen", "median s", "longest s")
    for kind, row in found["faults"].items():
        faults.add_row(
            kind, *(str(row["count"]), str(row["pauses"]), _number(row["median"]), _number(row["longest"]))
        )
    console.print(faults)
    memory = _table("Memory of processes that were never restarted", "service", "half", "end", "MiB/min")
    for row in found["memory"]:
        memory.add_row(
            row["service"],
            *(f"{row['at_half']:.0f}", f"{row['at_end']:.0f}", f"{row['slope_per_min']:+.2f}"),
        )
    console.print(memory)
    totals = _table("In all", "what", "value")
    for name, value in {
        "streams": found["streams"],
        "of these resumed by their client": found["streams_resumed"],
        "tokens": found["tokens"],
        "pause, median s": _number(found["pauses_s"]["median"]),
        "pause, longest s": _number(found["pauses_s"]["longest"]),
        **{name: f"{value:g}" for name, value in found["counters"].items()},
        "violations": found["violations"],
    }.items():
        totals.add_row(name, str(value))
    console.print(totals)
    for text in found["violations_in_words"]:
        console.print(f"[bold red]violation[/] {text}", markup=True, highlight=False)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1), title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
