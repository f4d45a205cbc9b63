"""The stack as people meet it from a terminal: `buf curl`, `outrider generate`, HTTP service routes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import httpx

from tests.stack import ENVIRONMENT, Stack
from tests.traffic import PROMPT, ask, connected, generate

BIN = Path(sys.executable).parent


def buf_curl(stack: Stack, method: str, body: object) -> list[dict[str, object]]:
    """Call a method by its name, its types found through reflection; the messages that came."""
    command = [
        str(BIN / "buf"),
        "curl",
        *("--protocol", "grpc", "--http2-prior-knowledge", "--reflect"),
        *("--data", json.dumps(body)),
        f"http://{stack.grpc}/{method}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    decoder, messages, text = json.JSONDecoder(), [], done.stdout.strip()
    while text:
        message, end = decoder.raw_decode(text)
        messages.append(message)
        text = text[end:].lstrip()
    return messages


def test_health_through_reflection(tiny: Stack) -> None:
    assert buf_curl(tiny, "grpc.health.v1.Health/Check", {}) == [{"status": "SERVING"}]
    named = buf_curl(tiny, "grpc.health.v1.Health/Check", {"service": "outrider.v1.Generation"})
    assert named == [{"status": "SERVING"}]


def test_generation_through_reflection(tiny: Stack) -> None:
    request = {
        "prompt": PROMPT,
        "sampling": {"temperature": 0},
        "stop": {"maxTokens": 12, "ignoreEos": True},
    }
    first, *deltas, last = buf_curl(tiny, "outrider.v1.Generation/Generate", request)
    assert "started" in first
    ids = [id_ for delta in deltas for id_ in delta["delta"]["tokenIds"]]  # type: ignore[index]
    assert len(ids) == 12
    assert last["finished"]["reason"] == "FINISH_REASON_LENGTH"  # type: ignore[index]
    models = buf_curl(tiny, "outrider.v1.Generation/ListModels", {})[0]["models"]
    assert [model["modelName"] for model in models] == ["tiny"]  # type: ignore[attr-defined]


def test_outrider_generate(tiny: Stack) -> None:
    async def expected() -> str:
        async with connected(tiny.grpc) as stub:
            request = ask(drafter=None, max_tokens=16, ignore_eos=False)
            return (await generate(stub, request)).text

    text = asyncio.run(expected())
    command = [sys.executable, "-m", "outrider.cli.main", "generate", PROMPT, "--raw"]
    command += ["--url", tiny.grpc, "--max-tokens", "16", "--temperature", "0", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    assert text.strip() in done.stdout


def test_outrider_generate_in_a_schema(tiny: Stack, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"enum": ["Paris", "Rome"]}')
    command = [sys.executable, "-m", "outrider.cli.main", "generate", PROMPT, "--raw", "--url", tiny.grpc]
    command += ["--quiet", "--temperature", "1", "--seed", "3"]
    for more, allowed in (
        (["--json-schema", "schema.json"], {'"Paris"', '"Rome"'}),
        (["--json-schema", '{"enum": [7]}'], {"7"}),
        (["--choice", "yes", "--choice", "no", "--no-speculation"], {"yes", "no"}),
        (["--regex", "[a-c]{3}d", "--frequency-penalty", "1", "--min-tokens", "2"], None),
    ):
        done = subprocess.run(
            [*command, *more],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            env=ENVIRONMENT,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        if allowed is None:
            assert len(done.stdout.strip()) == 4
        else:
            assert done.stdout.strip() in allowed


def test_service_routes(tiny: Stack) -> None:
    with httpx.Client(base_url=tiny.http, trust_env=False) as client:
        assert client.get("/health").status_code == 200
        assert "outrider_open_streams" in client.get("/metrics").text
        assert client.get("/v1/nothing").status_code == 404
