"""Where the other ranks of a tensor-parallel model live: child processes here, Ray actors under Ray Serve.

Rank 0 is the verifier's own engine thread: a step's plan then takes no way but the process group's. It asks a
`RankLauncher` for ranks 1 to N - 1; each of them runs `outrider.engine.parallel.follower.follow`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outrider.config.schema import EngineConfig


class LostRankError(Exception):
    """A rank is gone, or out of step: the model cannot run any more.

    No OutriderError: those end a session or a request. This one ends the process.
    """


@dataclass(frozen=True, slots=True)
class RankTask:
    """All that a follower needs to know."""

    folder: Path  # checkpoint, on the follower's own disk
    config: EngineConfig
    rank: int  # 1 to world_size - 1
    world_size: int
    rendezvous: str  # tcp://host:port of rank 0's store
    timeout_s: float  # longest wait for the others in a step


class Ranks(Protocol):
    """Followers that were launched."""

    def dead(self) -> str:
        """Which rank has ended, in words; empty: all live. Does not wait."""

    def close(self) -> None:
        """End them all, by force if they do not go by themselves. Idempotent."""


class RankLauncher(Protocol):
    """Starts followers."""

    def host(self) -> str:
        """The address of this machine under which followers reach it."""

    def threads(self, world_size: int) -> int:
        """Torch threads of each rank where the configuration does not say; 0: torch's own default."""

    def launch(self, tasks: list[RankTask]) -> Ranks:
        """Start them; returns at once. What goes wrong there shows in `dead`, or as a timeout at rank 0."""
