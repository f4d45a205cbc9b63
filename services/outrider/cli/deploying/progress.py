"""Waits for a change that Serve was told to make, and shows how it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from types import TracebackType

from ray.serve.schema import ServeInstanceDetails
from rich.live import Live

from outrider.cli.console import err
from outrider.cli.deploying.cluster import Cluster
from outrider.cli.deploying.status import Row, all_running, failure_of, rows_of, table_of
from outrider.core.errors import UnavailableError

POLL_S = 0.5
_MISSES = 20
"""Answers in a row that may fail: the head, too, is restarted at times."""


class Progress:
    """A table that changes on a terminal, a line for each change elsewhere. A context manager."""

    def __init__(self, names: Collection[str], *, lines: bool = False) -> None:
        """`lines`: on a terminal too, for what goes on for long."""
        table = err.is_terminal and not lines
        self._names = names
        self._live = Live(console=err, transient=True, auto_refresh=False) if table else None
        self._shown: dict[tuple[str, str], Row] = {}

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def remember(self, details: ServeInstanceDetails) -> None:
        """What is known to whoever reads the lines."""
        self._shown = {(row.application, row.deployment): row for row in rows_of(details, self._names)}

    def show(self, details: ServeInstanceDetails) -> None:
        """What is so now."""
        rows = rows_of(details, self._names)
        if self._live is not None:
            self._live.update(table_of(rows), refresh=True)
            return
        for row in rows:
            if self._shown.get((row.application, row.deployment)) != row:
                err.print(row.line, markup=False, soft_wrap=True)
        self.remember(details)


def wait_running(
    cluster: Cluster,
    names: Collection[str],
    *,
    before: ServeInstanceDetails,
    timeout_s: float,
    stopped: Callable[[], bool] = lambda: False,
) -> ServeInstanceDetails | None:
    """Wait until the applications run as they were last told to; None if `stopped` before.

    Args:
        before: what was so before they were told.

    Raises:
        UnavailableError: one of them will not run, or not in time.
    """
    deadline = time.monotonic() + timeout_s
    told = {name: one.last_deployed_time_s for name, one in before.applications.items()}
    patient = _Patient(cluster)
    with Progress(names) as progress:
        while not stopped():
            details = patient.details()
            new = [name for name in names if _deployed(details, name) != told.get(name, 0.0)]
            progress.show(details)
            if failure := failure_of(details, new):
                raise UnavailableError(failure)
            if len(new) == len(names) and all_running(details, names):
                return details
            if time.monotonic() > deadline:
                late = "\n  ".join(row.line for row in rows_of(details, names) if row.status not in _DONE)
                raise UnavailableError(f"not running after {timeout_s:g} s:\n  {late}")
            time.sleep(POLL_S)
    return None


def wait_gone(
    cluster: Cluster, names: Collection[str], *, timeout_s: float, hurry: Callable[[], bool] = lambda: False
) -> bool:
    """Wait until the applications are gone; False if they are not in time, or somebody is in a hurry."""
    deadline = time.monotonic() + timeout_s
    patient = _Patient(cluster)
    with Progress(names) as progress:
        while not hurry() and time.monotonic() < deadline:
            details = patient.details()
            progress.show(details)
            if not set(names) & set(details.applications):
                return True
            time.sleep(POLL_S)
    return False


_DONE = ("HEALTHY", "RUNNING")


def _deployed(details: ServeInstanceDetails, name: str) -> float:
    application = details.applications.get(name)
    return 0.0 if application is None else application.last_deployed_time_s


class _Patient:
    """A cluster whose head may be away for a moment."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._missed = 0
        self._last: ServeInstanceDetails | None = None

    def details(self) -> ServeInstanceDetails:
        """What Serve runs, or ran when it was last heard of.

        Raises:
            UnavailableError: it has not been heard of for long.
        """
        try:
            self._last, self._missed = self._cluster.details(), 0
        except UnavailableError:
            self._missed += 1
            if self._last is None or self._missed > _MISSES:
                raise
        return self._last
