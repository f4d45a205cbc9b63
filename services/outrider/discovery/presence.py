"""A service that is in the registry for as long as it serves, and tells its load there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from outrider.discovery.registry import Announcer, Instance, Load


@asynccontextmanager
async def announced(
    announcer: Announcer, instance: Instance, load: Callable[[], Load], *, interval_s: float
) -> AsyncIterator[None]:
    """`instance` is entered, and its load told every `interval_s` seconds. `announcer` takes it out."""
    await announcer.start(instance)
    reporter = asyncio.create_task(_report(announcer, load, interval_s))
    try:
        yield
    finally:
        reporter.cancel()


async def _report(announcer: Announcer, load: Callable[[], Load], interval_s: float) -> None:
    while True:
        announcer.update(load=load())
        await asyncio.sleep(interval_s)
