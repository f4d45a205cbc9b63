"""A Ray cluster, as far as a command needs it: what Serve runs there, and what it should run."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

import httpx
from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
from ray._private.utils import read_ray_address
from ray.dashboard.utils import ray_address_to_api_server_url
from ray.serve.schema import ServeInstanceDetails

from outrider.cli.deploying.environment import CLUSTERS
from outrider.core.errors import ConfigError, UnauthenticatedError, UnavailableError

APPLICATIONS = "/api/serve/applications/"
ANSWER_S = 30.0
"""For an answer of the cluster's head."""
START_S = 180.0
"""For one that has to start or to end Serve first."""
CONNECT_S = 3.0


class Cluster(Protocol):
    """What `outrider deploy` needs of a cluster."""

    def details(self) -> ServeInstanceDetails:
        """What Serve runs."""

    def apply(self, config: dict[str, Any]) -> None:
        """Have Serve run this, and nothing else. Returns before it does."""

    def shut_down(self) -> None:
        """End Serve, and wait for its end."""


class RemoteCluster:
    """Implements Cluster, through the REST API of the cluster's head, which is also its dashboard."""

    def __init__(self, url: str) -> None:
        """`url`: that of the dashboard."""
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url, headers=get_auth_headers_if_auth_enabled({}), timeout=ANSWER_S
        )

    def details(self) -> ServeInstanceDetails:
        """See Cluster.

        Raises:
            UnavailableError: the cluster does not answer.
            UnauthenticatedError: it does not take our token.
        """
        return ServeInstanceDetails.model_validate(self._ask("GET").json())

    def apply(self, config: dict[str, Any]) -> None:
        """See Cluster.

        Raises:
            ConfigError: the cluster refuses it.
            UnavailableError, UnauthenticatedError: as `details`.
        """
        self._ask("PUT", json=config, timeout=START_S)

    def shut_down(self) -> None:
        """See Cluster."""
        self._ask("DELETE", timeout=START_S)

    def _ask(self, method: str, **how: Any) -> httpx.Response:
        try:
            response = self._http.request(method, APPLICATIONS, **how)
        except httpx.HTTPError as error:
            raise UnavailableError(f"the Ray cluster at {self.url} does not answer: {error}") from error
        if response.is_success:
            return response
        said = response.text.strip()
        if response.status_code in (401, 403):
            raise UnauthenticatedError(
                f"the Ray cluster at {self.url} wants its token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH "
                f"({said})"
            )
        if response.status_code == 400:
            raise ConfigError(f"the Ray cluster at {self.url} refuses the configuration: {said}")
        if response.status_code == 404:
            raise UnavailableError(
                f"{self.url} is not the dashboard of a Ray cluster: it knows no {APPLICATIONS}"
            )
        raise UnavailableError(
            f"the Ray cluster at {self.url} answers with status {response.status_code}: {said}"
        )


def find_cluster(address: str | None) -> str | None:
    """URL of the dashboard of the cluster that is meant; None: there is none.

    Args:
        address: its URL, or HOST:PORT of the cluster itself, or `auto`; None: what the environment says, or a
            cluster that `ray start` started on this machine.

    Raises:
        ConfigError: the address is of another kind.
        UnavailableError: there is no cluster at the address that was given.
    """
    where = address or _in_environment()
    if where is None or where == "auto":
        found: str | None = read_ray_address()
        if found is not None and _answers(found):
            return _dashboard_of(found)
        if where == "auto":
            raise UnavailableError("there is no Ray cluster on this machine: start one (`ray start --head`)")
        return None
    if where.startswith(("http://", "https://")):
        return where
    if "://" in where or ":" not in where:
        raise ConfigError(
            "the cluster's address is the URL of its dashboard (http://HOST:8265), HOST:PORT or auto, "
            f"got {where!r}"
        )
    if not _answers(where):
        raise UnavailableError(f"nobody listens at {where}: is a Ray cluster there?")
    return _dashboard_of(where)


def _in_environment() -> str | None:
    return next((os.environ[name] for name in CLUSTERS if os.environ.get(name)), None)


def _answers(address: str) -> bool:
    """Ray's own client would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _dashboard_of(address: str) -> str:
    to_url: Callable[[str], str] = ray_address_to_api_server_url
    try:
        return to_url(address)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UnavailableError(
            f"the Ray cluster at {address} does not say where its dashboard is: {error}"
        ) from error
