"""`outrider serve` and `outrider generate`, whole, on tiny models."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.stack import tiny_config

OUTRIDER = (sys.executable, "-m", "outrider.cli.main")
READY = re.compile(r"outrider ready http=(http://127\.0\.0\.1:\d+) grpc=(127\.0\.0\.1:\d+)\n")


class Serving:
    """A running `outrider serve`."""

    def __init__(self, config: Path, log: Path, *options: str) -> None:
        self.log = log
        with log.open("w") as stderr:
            self.popen = subprocess.Popen(
                [*OUTRIDER, "serve", "--config", str(config), *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def line(self) -> str:
        """The next line that it prints; empty at its end."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def event(self) -> dict[str, Any]:
        """The next line of JSON."""
        line = self.line()
        assert line, self.log.read_text()
        event: dict[str, Any] = json.loads(line)
        return event

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        children = psutil.Process(self.popen.pid).children(recursive=True)
        self.popen.send_signal(signal.SIGTERM)
        status = self.popen.wait(60)
        assert psutil.wait_procs(children, timeout=10)[1] == []
        return status


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    data = tiny_config(folder)
    del data["drafters"]["other"]
    for section in (data["verifier"], *data["drafters"].values()):
        section["port"] = 0
    data["gateway"] = {"http_port": 0, "grpc_port": 0}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(scope="module")
def serving(config: Path) -> Iterator[tuple[Serving, dict[str, Any]]]:
    serving = Serving(config, config.parent / "serve.log", "--json-ready")
    with serving.popen:
        try:
            yield serving, serving.event()
            assert serving.stop() == 0, serving.log.read_text()
        finally:
            serving.popen.kill()


def generate(
    ready: dict[str, Any], *options: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*OUTRIDER, "generate", "--url", ready["grpc"], "--max-tokens", "24", *options]
    environment = os.environ | {"COLUMNS": "300"}
    return subprocess.run(
        command, input=stdin, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_ready_says_where_and_who(serving: tuple[Serving, dict[str, Any]]) -> None:
    process, ready = serving
    assert ready["event"] == "ready"
    assert ready["pid"] == process.popen.pid
    assert set(ready["services"]) == {"drafter:twin", "drafter:lookup", "verifier", "gateway"}
    for service in ready["services"].values():
        ancestors = [ancestor.pid for ancestor in psutil.Process(service["pid"]).parents()]
        assert ancestors[1] == process.popen.pid, "forked from the template that is its child"
    models = httpx.get(f"{ready['http']}/v1/models", trust_env=False).json()
    assert models["data"][0]["id"] == "tiny"


def test_the_same_text_with_and_without_speculation(
    serving: tuple[Serving, dict[str, Any]], config: Path
) -> None:
    _, ready = serving
    sampling = ("--temperature", "0.8", "--seed", "5", "one two three")
    plain = generate(ready, *sampling, "--no-speculation")
    drafted = generate(ready, *sampling, "--drafter", "twin")
    painted = generate(ready, *sampling, "--show-drafts", "--tokenizer", str(config.parent / "target"))
    assert (plain.returncode, drafted.returncode, painted.returncode) == (0, 0, 0), painted.stderr
    assert plain.stdout == drafted.stdout == painted.stdout
    assert "seed 5" in plain.stderr
    assert "twin" not in plain.stderr
    assert re.search(r"twin: \d+ rounds, \d+ of \d+ draft tokens accepted", drafted.stderr)


def test_prompts_come_from_stdin_and_quiet_is_quiet(serving: tuple[Serving, dict[str, Any]]) -> None:
    _, ready = serving
    piped = generate(ready, "-", "--raw", "-q", stdin="one two three")
    given = generate(ready, "one two three", "--raw", "-q")
    assert piped.stdout == given.stdout
    assert (piped.stderr, given.stderr) == ("", "")


def test_a_refused_request_names_the_field(serving: tuple[Serving, dict[str, Any]]) -> None:
    _, ready = serving
    done = generate(ready, "hello", "--drafter", "nobody")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "drafter" in done.stderr
    assert "twin" in done.stderr, "what is allowed is said"


def test_show_drafts_without_tokenizer_says_what_to_do(serving: tuple[Serving, dict[str, Any]]) -> None:
    _, ready = serving
    done = generate(ready, "hello", "--show-drafts")
    assert done.returncode == 1
    assert "--tokenizer" in done.stderr


@pytest.mark.parametrize("service", ["drafter:twin", "verifier", "gateway"])
def test_a_killed_service_comes_back_at_the_same_place(
    serving: tuple[Serving, dict[str, Any]], service: str
) -> None:
    process, ready = serving
    running = ready["services"][service]
    before = generate(ready, "one two", "-q").stdout
    os.kill(running["pid"], signal.SIGKILL)
    event = process.event()
    assert (event["event"], event["service"]) == ("restarted", service)
    assert event["pid"] != running["pid"]
    running["pid"] = event["pid"]
    assert f"{service} (pid" in process.log.read_text()
    with httpx.Client(base_url=ready["http"], trust_env=False) as client:
        while client.get("/health").status_code != 200:
            pass  # bounded by pytest's timeout
    assert generate(ready, "one two", "-q").stdout == before


def test_the_plain_ready_line(config: Path, tmp_path: Path) -> None:
    serving = Serving(config, tmp_path / "log", "--set", "drafters={}")
    with serving.popen:
        try:
            line = serving.line()
            assert READY.fullmatch(line), (line, serving.log.read_text())
            assert serving.stop() == 0
            assert serving.line() == ""
        finally:
            serving.popen.kill()


def test_a_port_in_use_ends_the_start_with_its_name(config: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = ("--set", "drafters={}", "--set", f"gateway.http_port={port}")
        serving = Serving(config, tmp_path / "log", *options)
        with serving.popen:
            try:
                assert serving.popen.wait(120) == 1
            finally:
                serving.popen.kill()
    log = serving.log.read_text()
    assert "error: gateway did not start" in log
    assert str(port) in log
    assert "Traceback" not in log
