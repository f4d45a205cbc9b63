"""The one thread that owns the engine: it loads the model and then runs the rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class EngineThread:
    """A thread for everything that touches torch, so that the event loop never waits for it."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine")

    async def call(self, function: Callable[[], T]) -> T:
        """Run something in the thread and wait for its result."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def start(self, function: Callable[[], None]) -> asyncio.Future[None]:
        """Run something long; the future tells when, and how, it ended."""
        return asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """End the thread. What it runs must have ended."""
        self._executor.shutdown(wait=True)
