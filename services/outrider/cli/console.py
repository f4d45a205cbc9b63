"""What the commands share to talk to a terminal."""

from __future__ import annotations

import sys

import rich.progress as bars
from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """A line for whoever reads this command's output, a program perhaps, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class FetchProgress:
    """Shows a fetch: bars on a terminal, one line a step elsewhere. A context manager."""

    def __init__(self) -> None:
        self._bars = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.DownloadColumn(),
            bars.TimeElapsedColumn(),
            console=err,
            disable=not err.is_terminal,
        )
        self._task: bars.TaskID | None = None

    def __enter__(self) -> FetchProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finish()
        self._bars.stop()

    def step(self, text: str) -> None:
        """A new step began."""
        self._finish()
        if err.is_terminal:
            self._task = self._bars.add_task(text, total=None)
        else:
            err.print(text)

    def advance(self, done: int, total: int) -> None:
        """`done` of `total` bytes of the step are there."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total)

    def _finish(self) -> None:
        if self._task is not None:
            task = self._bars.tasks[-1]
            self._bars.update(self._task, total=task.total or 1, completed=task.total or 1)
            self._task = None
