"""`outrider deploy` as users run it: on a Ray of its own on this machine, then on that as on any cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from openai import OpenAI

from outrider.rayserve.serve_file import BUILDER
from outrider.rayserve.servicing import SERVICER
from tests.processes import free_ports
from tests.stack import Stack, tiny_config
from tests.traffic import PROMPT, ask, connected, generate

TIMEOUT_S = 240
ENVIRONMENT = {"RAY_AUTH_TOKEN": "of-this-test", "COLUMNS": "300", "NO_COLOR": "1"}


def environment() -> dict[str, str]:
    """Ours without what the cluster of other tests may have left in it while it runs."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "OTEL_"))}
    return own | ENVIRONMENT


def serve_file(folder: Path, ports: list[int], *, lookups: int) -> Path:
    """A Serve configuration of tiny models with so many replicas of a drafter."""
    config = tiny_config(folder)
    config["drafters"] = {"lookup": config["drafters"]["lookup"]}
    small = {"cpus": 0.1}
    application = {
        "name": "outrider",
        "import_path": BUILDER,
        "args": {
            "config": config,
            "pools": {"gateway": small, "verifier": small, "drafters": {"lookup": small}},
            "loopback": True,
        },
        "deployments": [{"name": "drafter-lookup", "num_replicas": lookups}],
    }
    data = {
        "http_options": {"host": "127.0.0.1", "port": ports[0]},
        "grpc_options": {"port": ports[1], "grpc_servicer_functions": [SERVICER]},
        "applications": [application],
    }
    path = folder / f"serve-{lookups}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def outrider(*words: str) -> list[str]:
    return [sys.executable, "-m", "outrider.cli.main", "deploy", *words]


def told(*words: str) -> subprocess.CompletedProcess[str]:
    """What the command says, once it has ended."""
    return subprocess.run(
        outrider(*words), env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@contextmanager
def deployed_here(path: Path) -> Iterator[dict[str, Any]]:
    """Its ready line. At the end it is told to stop, and must leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            outrider(str(path), "--local", "--json-ready"),
            env=environment() | {"RAY_TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout:
            line = process.stdout.readline()
            family = psutil.Process(process.pid).children(recursive=True)
            try:
                if not line:
                    log.seek(0)
                    raise AssertionError(log.read()[-4000:])
                yield json.loads(line)
            finally:
                process.send_signal(signal.SIGTERM)
                status = process.wait(TIMEOUT_S)
                _, alive = psutil.wait_procs(family, timeout=10)
                for one in alive:
                    one.kill()
        assert (status, alive) == (0, [])


@pytest.mark.timeout(600)
async def test_it_serves_what_a_local_stack_serves(tiny: Stack, tmp_path: Path) -> None:
    ports = free_ports(2)
    with deployed_here(serve_file(tmp_path, ports, lookups=1)) as ready:
        assert (ready["http"], ready["grpc"]) == (f"http://127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}")
        assert sorted(ready["replicas"]) == ["drafter-lookup", "gateway", "registry", "verifier"]

        for temperature in (0.0, 1.0):
            request = ask(temperature=temperature, max_tokens=48)
            async with connected(tiny.grpc) as stub:
                expected = await generate(stub, request)
            async with connected(ready["grpc"]) as stub:
                got = await generate(stub, request)
            assert (got.token_ids, got.text) == (expected.token_ids, expected.text)

        answers = [
            OpenAI(base_url=f"{http}/v1", api_key="unused")
            .completions.create(model="tiny", prompt=PROMPT, max_tokens=24, seed=3)
            .choices[0]
            .text
            for http in (tiny.http, ready["http"])
        ]
        assert answers[0] == answers[1]

        # The same Ray, as somebody on another machine sees it.
        dashboard = ready["dashboard"]
        assert httpx.get(f"{dashboard}/api/serve/applications/", trust_env=False).status_code == 401
        again = told(str(serve_file(tmp_path, ports, lookups=2)), "--address", dashboard)
        assert (again.returncode, again.stdout.split()[:2]) == (0, ["outrider", "ready"]), again.stderr
        assert f"grpc=127.0.0.1:{ports[1]}" in again.stdout
        status = told("--status", "--address", dashboard)
        assert status.returncode == 0
        assert "outrider/drafter-lookup: HEALTHY, 2 of 2 replicas" in status.stdout
        assert "outrider/verifier: HEALTHY, 1 of 1 replicas" in status.stdout
