"""Small work that nobody waits for, such as a last word to a verifier, each for one generation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """Keeps tasks until they are done."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], str] = {}

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run `work`, which must end by itself, for the sake of `name`."""
        task = asyncio.create_task(work)
        self._tasks[task] = name
        task.add_done_callback(self._tasks.pop)

    async def done(self, name: str | None = None) -> None:
        """Wait for all that runs for `name` (None: for all)."""
        waiting = [task for task, own in self._tasks.items() if name in (None, own)]
        await asyncio.gather(*waiting, return_exceptions=True)
