"""Load, replicas, acceptance and speed over time, as a picture."""

from __future__ import annotations

from pathlib import Path

from bench.autoscale.sampling import Sample, rates


def draw(path: Path, samples: list[Sample], title: str) -> None:
    """Write a PNG."""
    from matplotlib.figure import Figure

    times = [one.t for one in samples]
    rated = rates(samples)
    figure = Figure(figsize=(9, 8), layout="constrained")
    load, replicas, share, speed = figure.subplots(4, 1, sharex=True)
    load.fill_between(times, [one.streams for one in samples], step="post", color="0.8")
    load.set_ylabel("open streams")
    load.set_title(title)
    for what, numbers, colour in (
        ("verifiers", [one.verifiers for one in samples], "tab:red"),
        ("drafters (draft model)", [one.drafters for one in samples], "tab:blue"),
    ):
        replicas.step(times, numbers, where="post", label=what, color=colour)
    replicas.set_ylabel("replicas that run")
    replicas.set_yticks(range(4))
    replicas.legend(loc="upper right")
    share.plot(
        *_known([(one.t, one.acceptance) for one in rated]), label="draft tokens accepted", color="tab:green"
    )
    share.plot(*_known([(one.t, one.late) for one in rated]), label="proposals late", color="tab:orange")
    share.set_ylim(0, 1)
    share.set_ylabel("share")
    share.legend(loc="upper right")
    speed.plot([one.t for one in rated], [one.tokens_per_s for one in rated], color="tab:purple")
    speed.set_ylim(bottom=0)
    speed.set_ylabel("tokens/s, all streams")
    speed.set_xlabel("seconds")
    for axes in (load, replicas, share, speed):
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _known(pairs: list[tuple[float, float | None]]) -> tuple[list[float], list[float]]:
    known = [(time, value) for time, value in pairs if value is not None]
    return [time for time, _ in known], [value for _, value in known]
