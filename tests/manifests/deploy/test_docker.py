"""Images: what they copy exists and reaches the builder, who they run as, and their health check."""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
HEALTH = ROOT / "deploy" / "docker" / "health.py"
OUR_STAGES = {"wheel", "environment", "environment-cpu", "environment-cuda", "runtime", "cuda", "cpu"}


def instructions() -> list[list[str]]:
    """Each instruction in words; exec forms and RUN as one."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text("utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [line.split(None, 1) for line in lines if line.strip()]


def copied() -> Iterator[str]:
    """What COPY takes from the repository."""
    for name, rest in instructions():
        words = shlex.split(rest)
        if name == "COPY" and not any(word.startswith("--from=") for word in words):
            yield from [word for word in words if not word.startswith("--")][:-1]


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).parent / "hadolint"
    said = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    sent = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    for path in copied():
        assert (ROOT / path).exists(), path
        assert any(path == one or path.startswith(f"{one}/") for one in sent), path
    assert set(sent) == set(copied())


def test_nothing_that_is_ignored_is_needed_to_build_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    needed = re.findall(r'^(?:readme|packages) = \[?"([^"]+)"', project, re.MULTILINE)
    assert len(needed) == 2
    for path in needed:
        assert any(path == one or path.startswith(f"{one}/") for one in copied()), path


def test_stages_build_on_each_other_and_on_a_pinned_base() -> None:
    stages = [(rest.split()[0], rest.split()[-1]) for name, rest in instructions() if name == "FROM"]
    assert {name for _, name in stages} == OUR_STAGES
    for base, _ in stages:
        assert base in OUR_STAGES or base == "${PYTHON_IMAGE}"
    [pinned] = [rest for name, rest in instructions() if name == "ARG" and rest.startswith("PYTHON_IMAGE=")]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", pinned)


def test_images_run_as_nobody_in_particular_by_exec() -> None:
    said = dict(instructions())  # the last one of each
    assert said["USER"] == "10001:10001"
    assert said["ENTRYPOINT"].startswith('["/usr/bin/tini", "--", "outrider"')
    assert said["CMD"].startswith("[")
    for name, rest in instructions():
        if name == "RUN" and "pip install" in rest:
            assert rest.startswith("--mount=type=cache,target=/root/.cache/pip"), rest
            assert "--constraint /build/constraints.txt" in rest
        assert not fnmatch.fnmatch(rest, "*apt-get*") or "rm -rf /var/lib/apt/lists/*" in rest


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def http_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def grpc_server(status: health_pb2.HealthCheckResponse.ServingStatus) -> Iterator[str]:
    with ThreadPoolExecutor(1) as workers:
        server = grpc.server(workers)
        servicer = health.HealthServicer()
        servicer.set("", status)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"grpc://127.0.0.1:{port}"
        server.stop(None).wait()


def checked(target: str) -> tuple[int, str]:
    command = [sys.executable, str(HEALTH), target]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return said.returncode, said.stdout + said.stderr


def test_the_health_check_over_http() -> None:
    with http_server() as url:
        assert checked(f"{url}/health") == (0, "")
        code, text = checked(f"{url}/other")
    assert code == 1
    assert "503" in text
    assert checked(f"{url}/health")[0] == 1  # nobody is there any more


@pytest.mark.parametrize("status", ["SERVING", "NOT_SERVING"])
def test_the_health_check_over_grpc(status: str) -> None:
    with grpc_server(health_pb2.HealthCheckResponse.ServingStatus.Value(status)) as target:
        code, text = checked(target)
    assert (code == 0) == (status == "SERVING")
    assert ("NOT_SERVING" in text) == (status != "SERVING")


def test_the_health_check_refuses_what_it_does_not_know() -> None:
    code, text = checked("ftp://127.0.0.1")
    assert code == 2
    assert "http, https, grpc or grpcs is expected, got 'ftp://127.0.0.1'" in text
