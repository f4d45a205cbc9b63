"""How fetching tells what it does."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told of each step of a fetch."""

    def step(self, text: str) -> None:
        """A new step began."""

    def advance(self, done: int, total: int) -> None:
        """`done` of `total` bytes of the step are there."""


class Silent:
    """Tells nobody."""

    def step(self, text: str) -> None:
        """Say nothing."""

    def advance(self, done: int, total: int) -> None:
        """Say nothing."""
