"""Runs a student over its data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from outrider.training import curves
from outrider.training.batches import Batches
from outrider.training.checkpoint import Progress, load_run, publish, save_run
from outrider.training.data.shards import Sample, Shard
from outrider.training.schedule import Schedule
from outrider.training.students.student import Student

BETAS = (0.9, 0.95)
CLIP = 0.5
"""Largest norm of a step's gradient."""
HELD_OUT_TOKENS = 4096
"""Of a batch of held-out conversations."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """A run. Nothing of it may change while it goes on, but for the last three."""

    schedule: Schedule
    seed: int = 1
    batch_tokens: int = 1400
    depth: int = 4  # of the drafts that are measured
    report_every: int = 50  # steps
    measure_every: int = 500
    save_s: float = 180.0  # seconds between checkpoints


class Trainer:
    """One student, one run, one folder."""

    def __init__(
        self,
        student: Student,
        shards: Sequence[Shard],
        held_out: Sequence[Sample],
        settings: TrainingSettings,
        folder: Path,
    ) -> None:
        """Take up the run in `folder`, or begin one.

        Args:
            student: that learns.
            shards: it learns from.
            held_out: conversations that it is judged on.
            settings: of the run.
            folder: takes checkpoints, curves and, as a drafter's checkpoint, the weights (`drafter/`).

        Raises:
            ConfigError: the folder's run was begun with other settings or data.
        """
        self._student = student
        self._held_out = held_out
        self._settings = settings
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._optimiser = torch.optim.AdamW(
            student.groups(settings.schedule.rate), betas=BETAS, weight_decay=0.0, fused=True
        )
        self._about = _about(student, shards, settings)
        self._progress = load_run(folder, student, self._optimiser, self._about)
        self._batches = Batches(
            shards,
            student.features,
            tokens=settings.batch_tokens,
            seed=settings.seed,
            place=self._progress.place,
        )
        self._reports = curves.read(folder, before=self._progress.step)

    @property
    def progress(self) -> Progress:
        """How far the run has come."""
        return self._progress

    @property
    def reports(self) -> Sequence[curves.Report]:
        """Of the run so far."""
        return self._reports

    def run(self, told: Callable[[curves.Report], None], *, stop_at: int | None = None) -> None:
        """Train to the end of the schedule, or up to step `stop_at`; publishes when it ends.

        `told` gets each report.
        """
        last = min(self._settings.schedule.steps, stop_at or self._settings.schedule.steps)
        losses: list[float] = []
        saved = time.monotonic()
        while self._progress.step < last:
            losses.append(self._step())
            step = self._progress.step
            if step % self._settings.report_every == 0 or step == last:
                measure = step % self._settings.measure_every == 0 or step == last
                told(self._report(losses, measure=measure))
                losses.clear()
            if time.monotonic() - saved > self._settings.save_s:
                self.save()
                saved = time.monotonic()
        self.save()

    def save(self) -> None:
        """Write checkpoint, drafter and pictures."""
        save_run(self._folder, self._student, self._optimiser, self._progress, self._about)
        publish(self._folder / "drafter", self._student)
        if self._reports:
            curves.draw(self._folder, self._reports)

    def _step(self) -> float:
        schedule, step = self._settings.schedule, self._progress.step
        factor = schedule.factor(step)
        for group in self._optimiser.param_groups:
            group["lr"] = group["top"] * factor
        loss, tokens = self._student.loss(self._batches.next(), schedule.unrolled(step))
        self._progress.place = self._batches.place
        self._progress.step += 1
        if tokens == 0:
            return 0.0
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        nn.utils.clip_grad_norm_(self._student.parameters(), CLIP)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._progress.tokens += tokens
        return float(loss.detach())

    def _report(self, losses: Sequence[float], *, measure: bool) -> curves.Report:
        acceptance = self.measure() if measure and self._held_out else ()
        report = curves.Report(
            self._progress.step,
            self._progress.tokens,
            sum(losses) / len(losses),
            self._settings.schedule.factor(self._progress.step - 1),
            acceptance,
        )
        curves.append(self._folder, report)
        self._reports.append(report)
        return report

    def measure(self) -> tuple[float, ...]:
        """Share of drafts on held-out texts that are right up to each depth."""
        depth = self._settings.depth
        counts = torch.zeros(depth + 1, dtype=torch.int64)
        batch: list[Sample] = []
        for sample in self._held_out:
            if batch and sum(len(own.token_ids) for own in (*batch, sample)) > HELD_OUT_TOKENS:
                counts += self._student.hits(batch, depth)
                batch = []
            batch.append(sample)
        counts += self._student.hits(batch, depth)
        drafts, *right = counts.tolist()
        return tuple(count / max(drafts, 1) for count in right)


def _about(student: Student, shards: Sequence[Shard], settings: TrainingSettings) -> dict[str, Any]:
    fixed = asdict(settings)
    for name in ("report_every", "measure_every", "save_s"):
        del fixed[name]
    return {
        "student": type(student).__name__,
        "settings": fixed,
        "target": student.teacher.target.info.model_name,
        "columns": len(student.teacher.draft_ids),
        "conversations": [f"{shard.path.parent.name}/{shard.path.stem}: {len(shard)}" for shard in shards],
    }
