"""A Ray cluster of this machine alone, which lives as long as this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.serve._private import api
from ray.serve._private.client import ServeControllerClient
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ServeDeploySchema, ServeInstanceDetails

from outrider.core.errors import UnavailableError

OBJECTS_BYTES = 100 * 2**20
"""Ray's object store: nothing of ours goes through it. Ray's own share would be a third of the memory."""
ANSWER_S = 30.0


class LocalCluster:
    """Implements Cluster. What replicas log comes out here."""

    def __init__(self, dashboard: str) -> None:
        """`dashboard`: its URL."""
        self.dashboard = dashboard
        self._client: ServeControllerClient | None = None

    def resources(self) -> dict[str, float]:
        """What there is for replicas, by Ray's names for it."""
        found: dict[str, float] = ray.cluster_resources()
        return found

    def details(self) -> ServeInstanceDetails:
        """See Cluster."""
        if self._client is None:
            return _nothing()
        try:
            answer = self._client._controller.get_serve_instance_details.remote()  # noqa: SLF001
            return ServeInstanceDetails.model_validate(ray.get(answer, timeout=ANSWER_S))
        except ActorDiedError:  # somebody has shut Serve down
            return _nothing()
        except RayError as error:
            raise UnavailableError(f"Ray Serve does not answer: {error}") from error

    def apply(self, config: dict[str, Any]) -> None:
        """See Cluster."""
        schema = ServeDeploySchema.model_validate(config)
        try:
            if self._client is None:
                self._client = api.serve_start(
                    http_options=schema.http_options.model_dump(),
                    grpc_options=schema.grpc_options.model_dump(),
                    proxy_location=schema.proxy_location,
                    controller_options=schema.controller_options,
                    global_logging_config=schema.logging_config,
                    global_tracing_config=schema.tracing_config,
                )
            self._client.deploy_apps(schema)
        except (RayError, RayServeException) as error:
            raise UnavailableError(f"Ray Serve did not start: {error}") from error

    def shut_down(self) -> None:
        """See Cluster."""
        if self._client is not None:
            self._client.shutdown(timeout_s=ANSWER_S)
            self._client = None


@contextmanager
def local_cluster() -> Iterator[LocalCluster]:
    """Start Ray; all of its processes are gone at the end.

    Raises:
        UnavailableError: it did not start.
    """
    try:
        context = ray.init(
            address="local",
            namespace="serve",
            include_dashboard=True,
            object_store_memory=OBJECTS_BYTES,
            logging_level=logging.WARNING,
        )
    except (RayError, RuntimeError, OSError, ValueError) as error:
        raise UnavailableError(f"Ray did not start on this machine: {error}") from error
    try:
        yield LocalCluster(f"http://{context.dashboard_url}")
    finally:
        ray.shutdown()


def _nothing() -> ServeInstanceDetails:
    return ServeInstanceDetails.model_validate(ServeInstanceDetails.get_empty_schema_dict())
