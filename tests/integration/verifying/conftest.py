"""Tiny models for the verifier's tests."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.tiny_models import make_tiny

VOCAB = 512


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama."""
    return make_tiny("llama", tmp_path_factory.mktemp("tiny"), vocab_size=VOCAB, max_position=512)


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another random llama with the same tokenizer and a shorter context."""
    folder = tmp_path_factory.mktemp("draft")
    return make_tiny("llama", folder, vocab_size=VOCAB, max_position=128, layers=1, seed=7)


@pytest.fixture
def prompts() -> list[list[int]]:
    """Eight prompts of several lengths."""
    rng = random.Random(5)
    return [[rng.randrange(3, VOCAB) for _ in range(length)] for length in (1, 2, 5, 9, 16, 33, 60, 90)]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience does not shrink: on a busy machine a round must not miss its proposal."""
    monkeypatch.setattr("outrider.verifying.patience._FLOOR_S", 60.0)
