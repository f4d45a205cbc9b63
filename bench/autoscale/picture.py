"""Load, replicas, acceptance and speed over time, as a picture.

python -m bench.autoscale.picture bench/results/autoscale_tiny.json docs/pictures/autoscale_tiny.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def draw(path: Path, found: Mapping[str, Any]) -> None:
    """Write a PNG of the findings of a run."""
    from matplotlib.figure import Figure

    rows = found["samples"]
    times = [row["t"] for row in rows]
    figure = Figure(figsize=(9, 8), layout="constrained")
    load, replicas, share, speed = figure.subplots(4, 1, sharex=True)
    load.fill_between(times, [row["streams"] for row in rows], step="post", color="0.8")
    load.set_ylabel("open streams")
    wrong = len(found["violations"])
    load.set_title(f"{found['streams']} streams, {found['tokens']} tokens, {wrong} wrong")
    for what, label, colour in (
        ("verifiers", "verifiers", "tab:red"),
        ("drafters", "drafters (draft model)", "tab:blue"),
    ):
        replicas.step(times, [row[what] for row in rows], where="post", label=label, color=colour)
    replicas.set_ylabel("replicas that run")
    replicas.set_yticks(range(4))
    for what, label, colour in (
        ("acceptance", "draft tokens accepted", "tab:green"),
        ("late", "proposals late", "tab:orange"),
    ):
        known = [(row["t"], row[what]) for row in rows if row[what] is not None]
        share.plot([time for time, _ in known], [value for _, value in known], label=label, color=colour)
    share.set_ylim(-0.05, 1.05)
    share.set_ylabel("share")
    speed.plot(times, [row["tokens_per_s"] for row in rows], color="tab:purple")
    speed.set_ylim(bottom=0)
    speed.set_ylabel("tokens/s, all streams")
    speed.set_xlabel("seconds")
    for axes in (load, replicas, share, speed):
        axes.grid(alpha=0.3)
    for axes in (replicas, share):
        axes.legend(loc="center left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[2]), json.loads(Path(sys.argv[1]).read_text("utf-8")))
