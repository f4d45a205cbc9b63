"""Requests that schemathesis makes up from the OpenAPI page: every answer is one that the page declares."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzzing import FACTOR
from tests.stack import Stack, tiny_config
from tests.tiny_models import make_tiny

SECONDS = 60 * FACTOR
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",  # errors have OpenAI's body, since the page says so
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A model whose context is full soon, since many requests set no length."""
    folder = tmp_path_factory.mktemp("page")
    config = tiny_config(folder)
    make_tiny("llama", folder / "target", max_position=64)
    config["drafters"] = {"lookup": config["drafters"]["lookup"]}
    with Stack(folder, config) as running:
        yield running


@pytest.mark.timeout(SECONDS + 600)
def test_answers_are_as_the_page_says(small: Stack, tmp_path: Path) -> None:
    command = [
        *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{small.http}/openapi.json"),
        *("--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS)),
        *(
            "--generation-database",
            "none",
            "--continue-on-failure",
            "--no-color",
            "--output-sanitize",
            "false",
        ),
        *(("--max-time", str(SECONDS)) if SECONDS else ("--seed", "1", "--max-examples", "12")),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS + 500, check=False
    )
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
