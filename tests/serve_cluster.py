"""A private Ray cluster of one node with Ray Serve, and applications on it, deployed as from a file.

    with ServeCluster(environment) as cluster:
        app = cluster.deploy({"config": ..., "pools": ...})
        ...                      # cluster.http, cluster.grpc, app.scale(verifier=1), app.pids("verifier")

Changed `args` replace every replica (a rolling update); `scale` changes numbers in place.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tests.processes import free_ports, wait_until

SERVICER = "outrider.rayserve.servicing.add_generation"
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all of Ray on loopback
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # two cores are busy while all start at once
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",  # Ray's default is 15
}
"""Of all of Ray's processes; `Ray` reads most of it when it is imported."""
LOGICAL_CPUS = 4
"""More than there are: replicas take fractions of them, and Ray starts one idle worker for each."""
START_TIMEOUT_S = 180.0


class ServeCluster:
    """A context manager. One at a time in a process: Ray's client is global."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: more of it, for all processes of the cluster."""
        self._environment = ENVIRONMENT | dict(environment or {})
        self._before = {name: os.environ.get(name) for name in self._environment}
        self._applications: dict[str, dict[str, Any]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="outrider-ray-", ignore_cleanup_errors=True)
        self.http_port, self.grpc_port = free_ports(2)
        self.http, self.grpc = f"http://127.0.0.1:{self.http_port}", f"127.0.0.1:{self.grpc_port}"

    def __enter__(self) -> ServeCluster:
        os.environ.update(self._environment)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray's own
                self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        import ray
        from ray import serve

        ray.init(
            address="local",
            num_cpus=LOGICAL_CPUS,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=self._folder.name,
        )
        serve.start(
            http_options={"host": "127.0.0.1", "port": self.http_port},
            grpc_options={"port": self.grpc_port, "grpc_servicer_functions": [SERVICER]},
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray
        from ray import serve

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if ray.is_initialized():
                serve.shutdown()
            ray.shutdown()
        self._folder.cleanup()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def deploy(
        self, args: Mapping[str, Any], *, name: str = "outrider", wait: bool = True, **fields: Any
    ) -> ServeApp:
        """Deploy an application, or change the one of this name; others stay as they are.

        Args:
            args: of `outrider.rayserve:build`.
            name: of the application.
            wait: until it runs.
            fields: others of an application in a configuration file: `route_prefix`, `deployments`, ...
        """
        self._applications[name] = {
            "name": name,
            "route_prefix": "/",
            "import_path": "outrider.rayserve:build",
            "args": dict(args),
            **fields,
        }
        self.apply()
        app = ServeApp(self, name)
        if wait:
            app.wait_running()
        return app

    def field(self, name: str, field: str) -> Any:
        """What was deployed last."""
        return self._applications[name].get(field)

    def change(self, name: str, **fields: Any) -> None:
        """Change fields of an application that is there."""
        self._applications[name] |= fields
        self.apply()

    def delete(self, name: str) -> None:
        """Take an application away, and wait until it is gone."""
        del self._applications[name]
        self.apply()
        wait_until(lambda: name not in _statuses(), f"application {name} is gone", timeout_s=START_TIMEOUT_S)

    def apply(self) -> None:
        """Tell Serve what is deployed now, as `serve deploy` does."""
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        client = _get_global_client()
        assert client is not None
        client.deploy_apps(ServeDeploySchema(applications=list(self._applications.values())))


class ServeApp:
    """An application that was deployed."""

    def __init__(self, cluster: ServeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    @property
    def args(self) -> Any:
        """Its arguments."""
        return self.cluster.field(self.name, "args")

    @property
    def overridden(self) -> bool:
        """Whether numbers of replicas were changed in place."""
        return bool(self.cluster.field(self.name, "deployments"))

    @property
    def status(self) -> Any:
        """Serve's ApplicationStatusOverview."""
        return _statuses()[self.name]

    def running(self) -> dict[str, int]:
        """Replicas that run, by deployment; -1 where others are on their way."""
        states = {name: one.replica_states for name, one in self.status.deployments.items()}
        return {
            name: one.get("RUNNING", 0) if set(one) <= {"RUNNING"} else -1 for name, one in states.items()
        }

    def wait_running(self, **replicas: int) -> None:
        """Wait until the application runs, with so many replicas of these deployments and none on its way."""
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            status, running = self.status, self.running()
            if status.status == "DEPLOY_FAILED":
                raise AssertionError(f"{status.message} {status.deployments}")
            settled = all(count >= 0 for count in running.values())
            if status.status == "RUNNING" and settled and replicas.items() <= running.items():
                return
            if time.monotonic() > end:
                raise AssertionError(f"after {START_TIMEOUT_S} s: {status}, wanted {replicas}")
            time.sleep(0.1)

    def scale(self, *, wait: bool = True, **replicas: int) -> None:
        """Change numbers of replicas in place. Names are Serve's; `_` stands for `-`."""
        wanted = {name.replace("_", "-"): count for name, count in replicas.items()}
        overrides = [{"name": name, "num_replicas": count} for name, count in wanted.items()]
        self.cluster.change(self.name, deployments=overrides)
        if wait:
            self.wait_running(**wanted)

    def replicas(self, deployment: str) -> list[dict[str, Any]]:
        """Serve's ReplicaDetails of each replica, oldest first."""
        from ray.serve.context import _get_global_client

        client = _get_global_client()
        assert client is not None
        details = client.get_serve_details()["applications"][self.name]["deployments"][deployment]
        return sorted(details["replicas"], key=lambda one: float(one["start_time_s"]))

    def pids(self, deployment: str) -> list[int]:
        """The processes of a deployment's replicas that run, oldest first."""
        return [one["pid"] for one in self.replicas(deployment) if one["state"] == "RUNNING"]


def _statuses() -> Mapping[str, Any]:
    from ray import serve

    return serve.status().applications
