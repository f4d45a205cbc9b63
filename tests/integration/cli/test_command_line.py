"""The command as users run it: output, messages, exit status."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from outrider.config import load_config


def outrider(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outrider.cli.main", *arguments]
    # Wide enough that no message is wrapped.
    environment = os.environ | {"COLUMNS": "300", "NO_COLOR": "1"} | env
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "deploy",
        "verifier",
        "drafter",
        "gateway",
        "generate",
        "models",
        "models fetch",
        "demo",
        "bench",
        "config",
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    done = outrider(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: " in done.stdout
    assert command.split()[-1] in done.stdout


def test_version() -> None:
    assert outrider("version").stdout.startswith("outrider 0.")


def test_one_grammar_at_most() -> None:
    done = outrider("generate", "x", "--regex", "a", "--choice", "b")
    assert done.returncode == 2
    assert "only one of --json-schema, --regex and --choice" in done.stderr
    assert "neither JSON nor a file" in outrider("generate", "x", "--json-schema", "absent.json").stderr


def test_wrong_usage_is_status_2() -> None:
    assert outrider("serve", "--nope").returncode == 2
    assert outrider("nope").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--set", "verifier.dtyp=x"], "did you mean 'dtype'"),
        (["serve", "--set", "model=./absent"], "model: there is no model './absent'"),
        (["serve", "--config", "absent.yaml"], "absent.yaml"),
        (["drafter", "nope"], "drafters.nope: no such drafter"),
        (["models", "fetch", "nope"], "there is no model 'nope' in the catalogue"),
        (["generate", "hello", "--url", "127.0.0.1:1"], "no answer from 127.0.0.1:1"),
        (["bench", "--prompts", "absent.jsonl"], "absent.jsonl"),
        (["demo", "--set", "verifier.port=x"], "verifier.port"),
    ],
)
def test_an_error_is_one_message_without_a_traceback(arguments: list[str], message: str) -> None:
    done = outrider(*arguments)
    assert done.returncode == 1, done
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_is_not_fetched_says_what_to_do(tmp_path: Path) -> None:
    done = outrider("verifier", OUTRIDER_CACHE=str(tmp_path))
    assert done.returncode == 1
    assert "outrider models fetch smollm2-135m-instruct" in done.stderr


def test_the_shown_configuration_can_be_used(tmp_path: Path) -> None:
    shown = outrider(
        "config", "show", "--set", "verifier.dtype=float32", "--set", "verifier.batch_invariance=off"
    )
    path = tmp_path / "shown.yaml"
    path.write_text(shown.stdout)
    expected = load_config(None, ["verifier.dtype=float32", "verifier.batch_invariance=off"])
    assert load_config(path) == expected
    assert yaml.safe_load(shown.stdout)["drafters"]["eagle"]["method"] == "eagle"


def test_the_schema_names_every_section() -> None:
    schema = json.loads(outrider("config", "schema").stdout)
    assert set(schema["properties"]) >= {"model", "verifier", "drafters", "gateway", "store", "telemetry"}


def test_models_are_listed(tmp_path: Path) -> None:
    listed = outrider("models", "list", OUTRIDER_CACHE=str(tmp_path)).stdout
    assert "smollm2-135m-instruct" in listed
    assert "smollm2-135m-draft-3l" in listed
    assert "Apache-2.0" in listed


def test_a_wrong_store_url_is_said_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    done = outrider(
        "verifier", "--set", f"model={tmp_path}", "--set", "store.kind=redis", "--set", "store.url=http://x"
    )
    assert done.returncode == 1
    assert "store.url must be redis://" in done.stderr  # and nothing of the folder, which holds no model


def test_a_port_in_use_is_one_line_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = outrider("drafter", "prompt_lookup", "--set", f"drafters.prompt_lookup.port={port}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}: is it in use?"), done.stderr
    assert done.stderr.count("\n") == 1


def test_what_grpc_says_itself_can_be_had() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        setting = f"drafters.prompt_lookup.port={taken.getsockname()[1]}"
        done = outrider("drafter", "prompt_lookup", "--set", setting, GRPC_VERBOSITY="info")
    assert "add_port" in done.stderr


def test_a_keys_file_that_is_not_there_is_said_with_how_to_make_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    for command in (["list"], ["revoke", "alice"]):
        done = outrider("keys", *command, "--file", str(file))
        assert done.returncode == 1
        assert f"`outrider keys new NAME --file {file}` makes it" in done.stderr
