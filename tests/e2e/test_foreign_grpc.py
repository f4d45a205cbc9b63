"""gRPC from outside: fresh stubs of protoc in a process that cannot import Outrider, and `buf curl`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from grpc_tools import protoc

from tests.e2e.test_tools import BIN, buf_curl
from tests.stack import ENVIRONMENT, Stack

PROTOS = Path(__file__).parents[2] / "protos"
PROGRAM = Path(__file__).with_name("foreign_client.py")
PROMPT = "The quick brown fox jumps over the lazy dog. The quick brown fox"


@pytest.fixture(scope="module")
def report(tiny: Stack, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the foreign client saw."""
    stubs = tmp_path_factory.mktemp("stubs")
    arguments = [f"-I{PROTOS}", f"-I{files('grpc_tools') / '_proto'}"]
    arguments += [f"--python_out={stubs}", f"--grpc_python_out={stubs}"]
    arguments += map(str, sorted((PROTOS / "outrider" / "v1").glob("*.proto")))
    assert not protoc.main(["protoc", *arguments])
    for package in ("outrider", "outrider/v1"):
        (stubs / package / "__init__.py").touch()
    command = [sys.executable, "-I", str(PROGRAM), str(stubs), tiny.grpc]
    done = subprocess.run(
        command, cwd=stubs, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_calls(report: Any) -> None:
    assert report["models"] == ["tiny"]
    plain = report["generations"]["plain"]
    assert plain["events"] == ["started", *["delta"] * (len(plain["events"]) - 2), "finished"]
    assert (plain["model"], plain["seed"], plain["reason"]) == ("tiny", 7, "FINISH_REASON_LENGTH")
    assert len(plain["ids"]) == plain["usage"][1] == 12
    assert report["unknown_cancel"] is False


def test_speculation_changes_nothing(report: Any) -> None:
    seen = report["generations"]
    for name in ("plain", "edited", "logprobs"):
        other = "off" if name == "plain" else f"{name}_off"
        for part in ("ids", "text", "logprobs", "prompt_logprobs"):
            assert seen[name][part] == seen[other][part]
        assert seen[name]["accepted"] > 0
        assert seen[other]["accepted"] == 0


def test_edits_change_the_output(report: Any) -> None:
    seen = report["generations"]
    assert seen["edited"]["ids"] != seen["plain"]["ids"]
    assert set(seen["allowed"]["ids"]) <= {300, 301}
    assert seen["choice"]["text"] in ("yes", "no")
    assert seen["choice"]["reason"] == "FINISH_REASON_STOP"
    assert len(seen["bad_words"]["ids"]) == 12
    assert "the" not in seen["bad_words"]["text"]
    for rule in ("token", "block"):
        assert len(seen[rule]["ids"]) == 12


def test_logprobs(report: Any) -> None:
    seen = report["generations"]["logprobs"]
    assert seen["ids"] == report["generations"]["plain"]["ids"]
    assert [token for token, *_ in seen["logprobs"]] == seen["ids"]
    for token, logprob, rank, top in seen["logprobs"]:
        assert (rank, top[0]) == (1, [token, logprob])  # greedy, and nothing was edited
        assert len(top) == 2 and 0 >= top[0][1] >= top[1][1]
    assert seen["events"][1] == "prompt_logprobs"
    assert len(seen["prompt_logprobs"]) == seen["usage"][0] - 1


def test_refusals_name_their_field(report: Any) -> None:
    for field, (code, named, message) in report["refusals"].items():
        assert (code, named) == ("INVALID_ARGUMENT", field), message
    assert report["unknown_model"][0] == "NOT_FOUND"
    assert report["bad_utf8"][0] == "INVALID_ARGUMENT"
    assert "UTF-8" in report["bad_utf8"][2]


def test_buf_curl_with_new_fields(tiny: Stack) -> None:
    request = {
        "prompt": PROMPT,
        "sampling": {
            "temperature": 0,
            "edits": {
                "logitBias": {"300": 100},
                "minTokens": 2,
                "grammar": {"kind": "GRAMMAR_KIND_REGEX", "text": "[a-z ]*"},
            },
        },
        "stop": {"maxTokens": 6},
        "logprobs": {"top": 1, "promptTop": 0},
        "speculation": {"acceptance": "ACCEPTANCE_COUPLED"},
    }
    messages = buf_curl(tiny, "outrider.v1.Generation/Generate", request)
    assert [next(iter(message)) for message in messages[:2]] == ["started", "promptLogprobs"]
    deltas = [message["delta"] for message in messages if "delta" in message]
    assert all(len(delta["logprobs"]) == len(delta["tokenIds"]) for delta in deltas if "tokenIds" in delta)  # type: ignore[arg-type,index,operator]
    assert "finished" in messages[-1]


@pytest.mark.parametrize(
    ("method", "body", "code", "text"),
    [
        ("Generate", {"prompt": "x", "model": "other"}, "not_found", "there is no model"),
        ("Generate", {}, "invalid_argument", "input is not set"),
        (
            "Generate",
            {"prompt": "x", "sampling": {"edits": {"frequencyPenalty": 3}}},
            "invalid_argument",
            "sampling.edits.frequency_penalty must be a number from -2 to 2",
        ),
        ("Nothing", {}, "", "method"),
    ],
)
def test_buf_curl_error_codes(tiny: Stack, method: str, body: object, code: str, text: str) -> None:
    command = [str(BIN / "buf"), "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--reflect"]
    command += ["--data", json.dumps(body), f"http://{tiny.grpc}/outrider.v1.Generation/{method}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert text in done.stderr
    if code:
        assert json.loads(done.stderr)["code"] == code


def test_buf_curl_lists_services_and_methods(tiny: Stack) -> None:
    for what, expected in (
        ("--list-services", "outrider.v1.Generation"),
        ("--list-methods", "outrider.v1.Generation/ListModels"),
    ):
        command = [str(BIN / "buf"), "curl", "--protocol", "grpc", "--http2-prior-knowledge", what]
        done = subprocess.run(
            [*command, f"http://{tiny.grpc}"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout.split()
