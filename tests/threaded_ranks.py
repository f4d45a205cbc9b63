"""The other ranks of a model as threads of the test's own process: real followers, but no process starts."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait

from outrider.engine.parallel.follower import follow
from outrider.engine.parallel.ranks import RankTask


class ThreadedRanks:
    """Implements RankLauncher."""

    def host(self) -> str:
        return "127.0.0.1"

    def threads(self, world_size: int) -> int:
        return 1

    def launch(self, tasks: list[RankTask]) -> Followers:
        return Followers(tasks)


class Followers:
    """Implements Ranks."""

    def __init__(self, tasks: list[RankTask]) -> None:
        self._threads = ThreadPoolExecutor(len(tasks), thread_name_prefix="rank")
        self._ends: list[Future[None]] = [self._threads.submit(follow, task) for task in tasks]

    def dead(self) -> str:
        for rank, end in enumerate(self._ends, 1):
            if end.done():
                return f"rank {rank} ended: {end.exception()}"
        return ""

    def close(self) -> None:
        """They end by themselves: told to, or because rank 0 is gone."""
        _, late = wait(self._ends, timeout=60)
        assert not late, "a rank goes on without rank 0"
        self._threads.shutdown()
