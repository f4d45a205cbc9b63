"""What `outrider deploy` makes of its options, of what Serve says, and of addresses of clusters."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray.serve.schema import ServeInstanceDetails

from outrider.cli.deploy import deploy
from outrider.cli.deploying import environment
from outrider.cli.deploying.addresses import addresses_of
from outrider.cli.deploying.cluster import RemoteCluster, find_cluster
from outrider.cli.deploying.here import check_ports
from outrider.cli.deploying.models import check_models
from outrider.cli.deploying.progress import wait_gone, wait_running
from outrider.cli.deploying.status import readable, rows_of
from outrider.core.errors import ConfigError, OutriderError, UnauthenticatedError, UnavailableError
from outrider.rayserve.serve_file import BUILDER, ServeFile, parse_serve_text
from outrider.rayserve.servicing import SERVICER
from tests.tiny_models import make_tiny

FAILED = """The deployment failed to start 3 times in a row. This may be a problem with its constructor.
\x1b[36mray::ServeReplica:outrider:verifier.initialize_and_get_metadata()\x1b[39m (pid=1, ip=127.0.0.1)
  File "replica.py", line 1, in initialize
RuntimeError: Traceback (most recent call last):
  File "server.py", line 2, in serve
outrider.core.errors.ConfigError: verifier.tensor_parallel is 3, which does not divide
the model's 8 attention heads"""


def serve_file(*, grpc: bool = True, http: dict[str, Any] | None = None, **args: Any) -> ServeFile:
    import yaml

    data = {
        "http_options": {"host": "127.0.0.1", "port": 8000} | (http or {}),
        "grpc_options": {"port": 9000, "grpc_servicer_functions": [SERVICER] if grpc else []},
        "applications": [{"name": "outrider", "import_path": BUILDER, "args": args}],
    }
    return parse_serve_text(yaml.safe_dump(data), "file.yaml")


def deployment(name: str, status: str = "HEALTHY", running: int = 1, message: str = "") -> dict[str, Any]:
    replica = {"replica_id": "r", "state": "RUNNING", "pid": 1, "start_time_s": 0.0}
    return {
        "name": name,
        "status": status,
        "status_trigger": "UNSPECIFIED",
        "message": message,
        "deployment_config": {"name": name},
        "target_num_replicas": 1,
        "required_resources": {},
        "replicas": [replica] * running,
    }


def details(
    status: str | None = "RUNNING",
    *deployments: dict[str, Any],
    deployed: float = 1.0,
    proxy: str = "HEALTHY",
    **more: Any,
) -> ServeInstanceDetails:
    """What Serve says; no status: that it runs nothing."""
    application = {
        "name": "outrider",
        "route_prefix": "/",
        "docs_path": None,
        "status": status,
        "message": "",
        "last_deployed_time_s": deployed,
        "source": "declarative",
        "deployments": {one["name"]: one for one in deployments},
        "external_scaler_enabled": False,
    }
    said = {
        "proxies": {"node": {"node_ip": "10.0.0.7", "status": proxy}},
        "applications": {"outrider": application} if status else {},
    }
    return ServeInstanceDetails.model_validate(said | more)


class Told:
    """A cluster that says one thing after the other, the last one for ever."""

    def __init__(self, *said: ServeInstanceDetails | OutriderError) -> None:
        self._said = list(said)

    def details(self) -> ServeInstanceDetails:
        said = self._said.pop(0) if len(self._said) > 1 else self._said[0]
        if isinstance(said, OutriderError):
            raise said
        return said

    def apply(self, config: dict[str, Any]) -> None:
        raise AssertionError(config)

    def shut_down(self) -> None:
        raise AssertionError


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.cli.deploying.progress.POLL_S", 0.0)
    for name in environment.CLUSTERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "a Serve configuration file is missing"),
        ({"check": True}, "a Serve configuration file is missing"),
        ({"file": Path("a.yaml"), "status": True}, "--status and --down take no file"),
        ({"status": True, "down": True}, "--check, --status and --down exclude each other"),
        (
            {"file": Path("a.yaml"), "local": True, "address": "auto"},
            "--local and --address exclude each other",
        ),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        deploy(**options)


def test_without_ray_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['ray'] = None\n"
        "from pathlib import Path; from outrider.cli.deploy import deploy\n"
        "deploy(Path('a.yaml'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'outrider[ray]'" in done.stderr.splitlines()[-1]


def test_the_error_is_found_in_what_serve_reports() -> None:
    assert readable(FAILED) == (
        "verifier.tensor_parallel is 3, which does not divide\nthe model's 8 attention heads"
    )
    assert readable("waits for resources") == "waits for resources"
    assert len(readable("x" * 10_000)) == 2000


def test_rows_count_replicas_and_are_one_line_each() -> None:
    rows = rows_of(details("DEPLOYING", deployment("verifier", "UPDATING", 0, FAILED)), ["outrider", "other"])
    assert [row.line for row in rows] == [
        "outrider/verifier: UPDATING, 0 of 1 replicas: verifier.tensor_parallel is 3, which does not divide "
        "the model's 8 attention heads"
    ]


def test_it_waits_for_what_it_asked_for_not_for_what_ran_before() -> None:
    before = details("RUNNING", deployed=1.0)
    ready = details("RUNNING", deployed=2.0)
    cluster = Told(before, details("DEPLOYING", deployed=2.0), ready)
    assert wait_running(cluster, ["outrider"], before=before, timeout_s=60) is ready


def test_a_proxy_must_take_calls_too() -> None:
    ready = details("RUNNING")
    cluster = Told(details("RUNNING", proxy="STARTING"), ready)
    assert wait_running(cluster, ["outrider"], before=details(None), timeout_s=60) is ready


def test_a_failure_of_what_ran_before_is_none_of_this_one() -> None:
    before = details("DEPLOY_FAILED", deployment("verifier", "DEPLOY_FAILED", 0, FAILED), deployed=1.0)
    ready = details("RUNNING", deployed=2.0)
    assert wait_running(Told(before, ready), ["outrider"], before=before, timeout_s=60) is ready


def test_what_does_not_start_is_said_in_words() -> None:
    failed = details("DEPLOY_FAILED", deployment("gateway"), deployment("verifier", "UNHEALTHY", 0, FAILED))
    with pytest.raises(UnavailableError, match=r"outrider did not start: verifier: verifier.tensor_parallel"):
        wait_running(Told(failed), ["outrider"], before=details(None), timeout_s=60)


def test_it_does_not_wait_for_ever() -> None:
    late = details("DEPLOYING", deployment("gateway"), deployment("verifier", "UPDATING", 0, "no room"))
    with pytest.raises(UnavailableError) as error:
        wait_running(Told(late), ["outrider"], before=details(None), timeout_s=0)
    assert "not running after 0 s:\n  outrider/verifier: UPDATING, 0 of 1 replicas: no room" in str(
        error.value
    )


def test_a_head_that_is_away_for_a_moment_is_borne() -> None:
    ready = details("RUNNING")
    cluster = Told(details("DEPLOYING"), UnavailableError("away"), UnavailableError("away"), ready)
    assert wait_running(cluster, ["outrider"], before=details(None), timeout_s=60) is ready


def test_a_head_that_stays_away_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="away"):
        wait_running(
            Told(details("DEPLOYING"), UnavailableError("away")),
            ["outrider"],
            before=details(None),
            timeout_s=60,
        )


def test_gone_in_time_or_not() -> None:
    assert wait_gone(Told(details("DELETING"), details(None)), ["outrider"], timeout_s=60)
    assert not wait_gone(Told(details("DELETING")), ["outrider"], timeout_s=0)
    assert not wait_gone(Told(details("DELETING")), ["outrider"], timeout_s=60, hurry=lambda: True)


@pytest.mark.parametrize(
    ("http", "url"),
    [
        ({"host": "127.0.0.1", "port": 8000}, "http://127.0.0.1:8000"),
        ({"host": "0.0.0.0", "port": 8001}, "http://10.0.0.7:8001"),
        ({"host": "0.0.0.0", "port": 8001, "root_path": "/llm"}, "http://10.0.0.7:8001/llm"),
    ],
)
def test_addresses_are_those_that_serve_has(http: dict[str, Any], url: str) -> None:
    """Options of the file that came too late do not count."""
    grpc = {"port": 9001, "grpc_servicer_functions": [SERVICER]}
    running = details("RUNNING", http_options=http, grpc_options=grpc)
    addresses = addresses_of(running, serve_file(http={"port": 7777}))
    assert (addresses.http, addresses.grpc) == (url, "10.0.0.7:9001")
    assert addresses_of(running, serve_file(grpc=False)).grpc == ""


def test_a_cluster_is_found_by_its_url_alone() -> None:
    assert find_cluster("http://head:8265") == "http://head:8265"


def test_the_environment_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", "https://head")
    assert find_cluster(None) == "https://head"
    assert find_cluster("http://other:1") == "http://other:1"


@pytest.mark.parametrize("address", ["ray://head:10001", "head"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"http://HOST:8265.*got"):
        find_cluster(address)


def test_nobody_there_is_said_at_once() -> None:
    with socket.socket() as closed:  # bound, and not listening
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="nobody listens"):
            find_cluster(address)
        with pytest.raises(UnavailableError, match="does not answer"):
            RemoteCluster(f"http://{address}").details()


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (400, ConfigError, "refuses the configuration: field required"),
        (401, UnauthenticatedError, "RAY_AUTH_TOKEN"),
        (404, UnavailableError, "is not the dashboard"),
        (500, UnavailableError, "status 500"),
    ],
)
def test_what_a_cluster_answers(status: int, error: type[OutriderError], said: str) -> None:
    cluster = RemoteCluster("http://head:8265/")
    answer = httpx.MockTransport(lambda request: httpx.Response(status, text="field required"))
    cluster._http = httpx.Client(base_url=cluster.url, transport=answer)
    with pytest.raises(error, match=said):
        cluster.apply({})


def test_a_port_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"file.yaml: http_options.port: {port} is in use"):
            check_ports(serve_file(http={"port": port}, grpc=False))


def test_a_model_must_be_called_the_same_on_all_nodes(tmp_path: Path) -> None:
    check_models(serve_file(config={"model": "/models/nowhere/here"}))  # other machines may have it
    with pytest.raises(ConfigError, match=r"applications.0.args.config.model: 'models/mine' is neither"):
        check_models(serve_file(config={"model": "models/mine"}))
    with pytest.raises(ConfigError, match=r"args.config.drafters.eagle.model: '' is neither"):
        check_models(serve_file(config={"drafters": {"eagle": {"method": "eagle"}}}))


def test_ranks_must_divide_the_model(tmp_path: Path) -> None:
    model = str(make_tiny("llama", tmp_path / "target"))
    check_models(serve_file(config={"model": model, "verifier": {"tensor_parallel": 2}}))
    with pytest.raises(
        ConfigError, match=r"file.yaml: applications.0.args.config: verifier.tensor_parallel is 3"
    ):
        check_models(serve_file(config={"model": model, "verifier": {"tensor_parallel": 3}}))


def test_the_environment_is_set_and_what_the_user_set_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(
        "applications:\n- args: {config: {telemetry: {otlp_endpoint: 'http://otel:4317', sample_ratio: 0.5}}}"
    )
    variables = {"RAY_worker_niceness": "5"}
    monkeypatch.setattr(environment.os, "environ", variables)
    environment.prepare(path, local=True)
    assert variables["RAY_worker_niceness"] == "5"
    assert variables["RAY_AUTH_MODE"] == "token"
    assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otel:4317"
    assert variables["RAY_SERVE_TRACING_SAMPLING_RATIO"] == "0.5"


@pytest.mark.parametrize(
    "text", ["", "applications: 3", "applications: [{args: }]", "a: [", "applications: []"]
)
def test_a_wrong_file_is_no_trouble_to_the_environment(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file.yaml").write_text(text)
    variables: dict[str, str] = {}
    monkeypatch.setattr(environment.os, "environ", variables)
    environment.prepare(tmp_path / "file.yaml", local=True)
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in variables
