"""Stacks of real processes, each started once for all tests that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.otlp_sink import OtlpSink
from tests.stack import Stack, tiny_config


@pytest.fixture(scope="session")
def sink() -> Iterator[OtlpSink]:
    """Receives the traces of `tiny`."""
    with OtlpSink() as running:
        yield running


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, sink: OtlpSink) -> Iterator[Stack]:
    """Tiny models, traces to `sink`, everything else as it is by default."""
    folder = tmp_path_factory.mktemp("tiny")
    config = tiny_config(folder)
    config["telemetry"] = {"otlp_endpoint": sink.endpoint}
    with Stack(folder, config) as running:
        yield running


def demo_config(dtype: str, target: Path, draft: Path) -> dict[str, Any]:
    """The demo's models and drafters."""
    return {
        "model": str(target),
        "served_name": "smollm2-135m-instruct",
        "verifier": {"dtype": dtype, "draft_length": 3, "pool_tokens": 8192},
        "drafters": {
            "draft_model": {"model": str(draft), "dtype": dtype, "pool_tokens": 8192},
            "prompt_lookup": {"method": "prompt_lookup"},
        },
    }


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def demo(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, smollm2: Path, draft_3l: Path
) -> Iterator[Stack]:
    """The demo model, in each dtype."""
    folder = tmp_path_factory.mktemp(f"demo-{request.param}")
    with Stack(folder, demo_config(request.param, smollm2, draft_3l)) as running:
        yield running
