"""What became of a run: a line of JSON for each report, and pictures of loss and acceptance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_LINES = "curve.jsonl"


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a run."""

    step: int
    tokens: int  # of answers that were learnt from
    loss: float  # mean since the last report
    rate: float  # factor of the learning rate
    acceptance: tuple[float, ...] = ()  # share of drafts that are right up to each depth; empty: not measured

    @property
    def tokens_per_round(self) -> float:
        """Of greedy chains, the target's own token included."""
        return 1.0 + sum(self.acceptance)


def append(folder: Path, report: Report) -> None:
    """Add a line to the run's curve."""
    line = asdict(report)
    if report.acceptance:
        line["tokens_per_round"] = report.tokens_per_round
    with (folder / _LINES).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(folder: Path, *, before: int | None = None) -> list[Report]:
    """The run's reports, of steps up to `before`; what a broken run wrote past its checkpoint is left out."""
    path = folder / _LINES
    if not path.exists():
        return []
    reports: dict[int, Report] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        line.pop("tokens_per_round", None)
        report = Report(**line | {"acceptance": tuple(line["acceptance"])})
        if before is None or report.step <= before:
            reports[report.step] = report
    return list(reports.values())


def draw(folder: Path, reports: Sequence[Report]) -> Path | None:
    """Write curve.png; None if matplotlib (extra `train`) is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([report.tokens for report in reports], [report.loss for report in reports])
    left.set(xlabel="tokens of answers learnt from", ylabel="loss (KL, nats)", title="Loss")
    measured = [report for report in reports if report.acceptance]
    tokens = [report.tokens for report in measured]
    for depth in range(len(measured[-1].acceptance) if measured else 0):
        right.plot(
            tokens, [report.acceptance[depth] for report in measured], label=f"up to depth {depth + 1}"
        )
    right.set(
        xlabel="tokens of answers learnt from", ylabel="share of drafts", title="Right on held-out texts"
    )
    if measured:
        right.legend()
    path = folder / "curve.png"
    FigureCanvasAgg(figure).print_png(path)  # type: ignore[no-untyped-call]  # matplotlib's own
    return path
