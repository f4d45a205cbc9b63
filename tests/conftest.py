"""Fixtures for all tests. Nothing heavy is imported here."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Tests of several processes share few cores: spinning threads would slow each other down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _model(name: str) -> Path:
    from outrider.catalogue import fetch

    return fetch(name)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command run inside a test sets up logging for its whole process: take that back after the test."""
    root, ours = logging.getLogger(), logging.getLogger("outrider")
    handlers, levels = set(root.handlers), (root.level, ours.level)
    yield
    for handler in set(root.handlers) - handlers:
        root.removeHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The demo target's folder. Its tests carry `@pytest.mark.model`."""
    return _model("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def draft_3l() -> Path:
    """The demo draft model's folder. Its tests carry `@pytest.mark.model`."""
    return _model("smollm2-135m-draft-3l")


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Gives TCP ports on loopback that were free when asked, never the same one twice."""
    given: set[int] = set()

    def port() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                found: int = probe.getsockname()[1]
            if found not in given:
                given.add(found)
                return found

    return port
