"""A drafter as a process: load, listen, serve, drain."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from outrider.config.schema import DrafterConfig, OutriderConfig
from outrider.core.errors import ConfigError, InternalError
from outrider.core.models import DrafterInfo
from outrider.discovery import (
    Announcer,
    Instance,
    Load,
    Role,
    advertised,
    advertised_page,
    announced,
    open_announcer,
)
from outrider.drafting.factory import build_method
from outrider.drafting.observer import DraftObserver
from outrider.drafting.scheduler import DraftScheduler
from outrider.drafting.service import DrafterService
from outrider.drafting.worker import DraftWorker, Turn
from outrider.telemetry import tracing
from outrider.telemetry.metrics import DrafterMetrics, serve_metrics
from outrider.wire import channels, services
from outrider.wire.protection import Protection, internal_protection

log = logging.getLogger(__name__)

DRAIN_S = 1.0
"""How long proposals that are owed may take once the drafter is told to stop."""
MAX_STREAMS = 64
"""Calls at once of one verifier, which needs one stream and greets now and then."""
CLOSE_S = 1.0
"""How long streams may then take to close."""


async def serve(
    config: OutriderConfig,
    name: str,
    *,
    ready: Callable[[dict[str, str]], None],
    stop: asyncio.Event,
    registry: CollectorRegistry | None = None,
    instance_id: str = "",
) -> None:
    """Serve the drafter that `config.drafters` calls `name`, until `stop` is set.

    Args:
        config: of the whole deployment.
        name: a key of `config.drafters`.
        ready: called with {"grpc": "host:port"} once it takes calls (with "metrics" if these are served).
        stop: ends it.
        registry: for its metrics; None: one of its own.
        instance_id: tells this process from others, also earlier ones at its address; empty: a random one.

    Raises:
        ConfigError: no such drafter, no such model, an address that cannot be bound, or files that
            `security` names are wrong.
        UnsupportedModelError: the draft model's architecture is not supported.
        InternalError: a defect ended the drafter's thread.
    """
    if name not in config.drafters:
        raise ConfigError(f"drafters.{name}: no such drafter, there are {sorted(config.drafters) or 'none'}")
    own = config.drafters[name]
    protection = internal_protection(config.security)
    instance_id = instance_id or uuid.uuid4().hex
    loop = asyncio.get_running_loop()
    worker = DraftWorker()
    async with AsyncExitStack() as stack:
        stack.callback(worker.stop)
        scheduler, info = await asyncio.wrap_future(
            worker.start(lambda: _build(own, config.model, instance_id))
        )
        traces = tracing.setup(config.telemetry, "drafter", instance_id=instance_id)
        stack.push_async_callback(asyncio.to_thread, traces.shutdown)
        registry = registry or CollectorRegistry()
        observer = DraftObserver(name, DrafterMetrics(registry, info.model.model_name), traces)
        service = DrafterService(info, put=worker.put, observe=observer)
        work = await stack.enter_async_context(
            _working(worker, scheduler, lambda turn: loop.call_soon_threadsafe(service.on_turn, turn))
        )
        announcer = open_announcer(config)
        stack.push_async_callback(announcer.close)
        address = await stack.enter_async_context(_listening(own, service, announcer, protection))
        addresses = {"grpc": address}
        if own.metrics_port is not None:
            page = serve_metrics(registry, own.host, own.metrics_port)
            stack.callback(page.close)
            addresses["metrics"] = page.address
        log.info("drafter %s (%s) serves on %s", name, info.method, address)
        shown = advertised(config, own.advertise, address, f"drafters.{name}.advertise")
        metrics_page = advertised_page(shown, addresses.get("metrics", ""))
        instance = Instance(Role.DRAFTER, shown, name, instance_id, metrics=metrics_page)
        await stack.enter_async_context(
            announced(announcer, instance, lambda: _load(service), interval_s=config.registry.heartbeat_s)
        )
        ready(addresses)
        await _until(stop, work)


def _build(own: DrafterConfig, target: str, instance_id: str) -> tuple[DraftScheduler, DrafterInfo]:
    """In the worker's thread: load the model."""
    method = build_method(own, target)
    scheduler = DraftScheduler(
        method,
        max_sessions=own.max_sessions,
        max_draft_tokens=own.max_draft_tokens,
        run_ahead=own.run_ahead,
    )
    info = DrafterInfo(
        model=method.info,
        method=method.name,
        features=tuple(sorted(method.features)),
        max_draft_tokens=own.max_draft_tokens,
        max_sessions=own.max_sessions,
        instance_id=instance_id,
        last_feature_only=method.last_feature_only,
    )
    return scheduler, info


@asynccontextmanager
async def _working(
    worker: DraftWorker, scheduler: DraftScheduler, deliver: Callable[[Turn], object]
) -> AsyncIterator[asyncio.Future[None]]:
    """The worker's thread at work; yields what ends with it."""
    work = asyncio.wrap_future(worker.run(scheduler, deliver))
    try:
        yield work
    finally:
        worker.stop()
        await asyncio.wait([work])


@asynccontextmanager
async def _listening(
    own: DrafterConfig, service: DrafterService, announcer: Announcer, protection: Protection
) -> AsyncIterator[str]:
    """The gRPC server with health and reflection; yields its address, drains at the end.

    Who looks into the registry hears of that first: nobody is sent here while the streams move on.
    """
    server = channels.make_server(channels.Limits(max_streams=MAX_STREAMS), protection=protection)
    services.add_drafter(server, service)
    health = await channels.add_health(server, (services.DRAFTER,))
    channels.add_reflection(server, (services.DRAFTER,))
    address = channels.listen(server, own.host, own.port, protection)
    await server.start()
    load = asyncio.create_task(service.tell_load())
    await health.set_serving(True)
    try:
        yield address
        announcer.update(draining=True)
        await health.shut_down()
        await service.drain(DRAIN_S)
    finally:
        load.cancel()
        await server.stop(CLOSE_S)


def _load(service: DrafterService) -> Load:
    load = service.load
    return Load(load.sessions, load.queued, service.max_sessions, load.kv_usage)


async def _until(stop: asyncio.Event, work: asyncio.Future[None]) -> None:
    """Wait for `stop`.

    Raises:
        InternalError: the worker's thread ended first.
    """
    stopped = asyncio.ensure_future(stop.wait())
    either: set[asyncio.Future[Any]] = {stopped, work}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if work.done():
        raise InternalError("the drafter's thread ended by itself") from work.exception()
