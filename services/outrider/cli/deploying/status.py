"""What Serve says about applications, for people: rows, lines, and the end of waiting."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ray.serve.schema import ApplicationDetails, DeploymentDetails, ServeInstanceDetails
from rich.table import Table

_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception): ", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 2000
_STYLES = {"HEALTHY": "green", "RUNNING": "green", "UNHEALTHY": "red", "DEPLOY_FAILED": "red"}


@dataclass(frozen=True, slots=True)
class Row:
    """One deployment, or an application that has none yet."""

    application: str
    deployment: str
    status: str
    running: int
    wanted: int
    message: str

    @property
    def line(self) -> str:
        """For a log."""
        message = " ".join(self.message.split())
        name = f"{self.application}/{self.deployment}" if self.deployment else self.application
        count = f", {self.running} of {self.wanted} replicas" if self.deployment else ""
        return f"{name}: {self.status}{count}" + (f": {message}" if message else "")


def rows_of(details: ServeInstanceDetails, names: Collection[str]) -> list[Row]:
    """Rows of these applications, in the order of names."""
    found = [details.applications[name] for name in sorted(names) if name in details.applications]
    return [row for application in found for row in _rows(application)]


def table_of(rows: Collection[Row]) -> Table:
    """For a terminal."""
    table = Table("application", "deployment", "status", "replicas", "")
    for row in rows:
        style = _STYLES.get(row.status, "yellow")
        count = f"{row.running}/{row.wanted}" if row.deployment else ""
        status = f"[{style}]{row.status}[/]"
        table.add_row(row.application, row.deployment, status, count, _escaped(row.message))
    return table


def all_running(details: ServeInstanceDetails, names: Collection[str]) -> bool:
    """Whether all of them run, and can be reached."""
    applications = [details.applications.get(name) for name in names]
    reachable = all(proxy.status == "HEALTHY" for proxy in details.proxies.values())
    return reachable and all(one is not None and one.status == "RUNNING" for one in applications)


def failure_of(details: ServeInstanceDetails, names: Collection[str]) -> str | None:
    """Why one of them will not run, if Serve has given up."""
    for name in sorted(names):
        application = details.applications.get(name)
        if application is not None and application.status == "DEPLOY_FAILED":
            causes = [
                f"{one.name}: {readable(one.message)}"
                for one in application.deployments.values()
                if one.status in ("DEPLOY_FAILED", "UNHEALTHY") and one.message
            ]
            return f"{name} did not start: " + ("\n  ".join(causes) or readable(application.message))
    return None


def readable(message: str) -> str:
    """The error at the end of what Serve reports, which comes with a traceback, or two."""
    message = _COLOUR.sub("", message).strip()
    errors = list(_ERROR.finditer(message))
    if errors:
        message = message[errors[-1].end() :].strip() or message[errors[-1].start() :].strip()
    return message if len(message) <= _LONGEST else message[: _LONGEST - 3] + "..."


def _rows(application: ApplicationDetails) -> Iterator[Row]:
    if not application.deployments:
        message = readable(application.message)
        yield Row(application.name, "", application.status.value, 0, 0, message)
    for deployment in application.deployments.values():
        yield Row(
            application.name,
            deployment.name,
            deployment.status.value,
            _running(deployment),
            deployment.target_num_replicas,
            readable(deployment.message),
        )


def _running(deployment: DeploymentDetails) -> int:
    return sum(replica.state == "RUNNING" for replica in deployment.replicas)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
