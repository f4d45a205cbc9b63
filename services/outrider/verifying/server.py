"""A verifier as a process: load, link, listen, serve, drain."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from outrider import catalogue
from outrider.config.schema import OutriderConfig, VerifierConfig
from outrider.core.errors import InternalError
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
from outrider.engine.engine import Engine
from outrider.engine.parallel.opening import open_engine
from outrider.engine.parallel.ranks import LostRankError, RankLauncher
from outrider.sessions import open_store
from outrider.telemetry import tracing
from outrider.telemetry.metrics import VerifierMetrics, serve_metrics
from outrider.verifying.engine_thread import EngineThread
from outrider.verifying.replica import Replica
from outrider.wire import channels, services
from outrider.wire.protection import PLAIN, Protection, internal_protection

_log = logging.getLogger(__name__)

SPARE_STREAMS = 256
"""Calls at once of one gateway, beside its sessions."""
CLOSE_S = 1.0
"""How long streams may then take to close, and the last commits to be stored."""

RANK_CHECK_S = 0.5
"""How often the other ranks of the model are looked at: one may die while the engine is idle."""


async def serve(
    config: OutriderConfig,
    *,
    ready: Callable[[dict[str, str]], None],
    stop: asyncio.Event,
    launcher: RankLauncher | None = None,
    registry: CollectorRegistry | None = None,
    instance_id: str = "",
) -> None:
    """Serve the target model until `stop` is set; then hand over what runs.

    Args:
        config: of the whole deployment.
        ready: called with {"grpc": "host:port"} once it takes calls (with "metrics" if these are served).
        stop: ends it.
        launcher: starts the other ranks of a tensor-parallel model; needed if there are any.
        registry: for its metrics; None: one of its own.
        instance_id: tells this process from others, also earlier ones at its address; empty: a random one.

    Raises:
        ConfigError: no such model, an address that cannot be bound, or files that `security` names are wrong.
        UnsupportedModelError: the target's architecture is not supported.
        InternalError: a defect ended the engine thread, or a rank of the model was lost.
    """
    own, instance_id = config.verifier, instance_id or uuid.uuid4().hex
    protection = internal_protection(config.security)
    folder = catalogue.resolve(config.model)
    thread = EngineThread()
    async with AsyncExitStack() as stack:
        stack.callback(thread.close)
        store = open_store(config.store)  # before the model, which takes longer: its URL may be wrong
        stack.push_async_callback(store.close)
        announcer = open_announcer(config)
        stack.push_async_callback(announcer.close)
        engine = await thread.call(lambda: open_engine(folder, own, name=config.name, launcher=launcher))
        stack.push_async_callback(asyncio.to_thread, engine.close)  # it waits for the other ranks
        traces = tracing.setup(config.telemetry, "verifier", instance_id=instance_id)
        stack.push_async_callback(asyncio.to_thread, traces.shutdown)
        registry = registry or CollectorRegistry()
        metrics = VerifierMetrics(registry, config.name)
        replica = Replica(
            config,
            engine,
            store=store,
            metrics=metrics,
            tracing=traces,
            announcer=announcer,
            instance_id=instance_id,
            protection=protection,
        )
        replica.writer.start()
        stack.push_async_callback(replica.writer.close, CLOSE_S)
        await stack.enter_async_context(replica.linked())
        work = await stack.enter_async_context(replica.running(thread))
        address = await stack.enter_async_context(
            _listening(own, replica, own.drain_s, announcer, protection)
        )
        addresses = {"grpc": address}
        if own.metrics_port is not None:
            page = serve_metrics(registry, own.host, own.metrics_port)
            stack.callback(page.close)
            addresses["metrics"] = page.address
        _log.info("verifier serves %s on %s", config.name, address)
        shown = advertised(config, own.advertise, address, "verifier.advertise")
        metrics_page = advertised_page(shown, addresses.get("metrics", ""))
        instance = Instance(Role.VERIFIER, shown, instance_id=instance_id, metrics=metrics_page)
        await stack.enter_async_context(
            announced(announcer, instance, lambda: _load(replica), interval_s=config.registry.heartbeat_s)
        )
        ready(addresses)
        await _until(stop, work, engine)


@asynccontextmanager
async def _listening(
    own: VerifierConfig,
    replica: Replica,
    drain_s: float,
    announcer: Announcer | None = None,
    protection: Protection = PLAIN,
) -> AsyncIterator[str]:
    """The gRPC server with health and reflection; yields its address, drains at the end.

    Whoever looks at the registry, or asks for health, hears of that first: nobody is sent here while
    sessions move on.
    """
    # A gateway keeps all its calls on one connection: there must be room for one that cancels another.
    limits = channels.Limits(max_streams=own.max_sessions + own.max_queue + SPARE_STREAMS)
    server = channels.make_server(limits, protection=protection)
    services.add_verifier(server, replica.servicer)
    health = await channels.add_health(server, (services.VERIFIER,))
    channels.add_reflection(server, (services.VERIFIER,))
    address = channels.listen(server, own.host, own.port, protection)
    await server.start()
    await health.set_serving(True)
    try:
        yield address
        if announcer is not None:
            announcer.update(draining=True)
        await health.shut_down()
        await replica.drain(drain_s)
    finally:
        await server.stop(CLOSE_S)


def _load(replica: Replica) -> Load:
    load = replica.rounds.load
    return Load(load.running, load.waiting, load.max_running, load.kv_usage)


async def _until(stop: asyncio.Event, work: asyncio.Future[None], engine: Engine) -> None:
    """Wait for `stop`.

    Raises:
        InternalError: the engine thread ended first, or a rank of the model did.
    """
    waited: tuple[asyncio.Future[Any], ...] = (
        asyncio.ensure_future(stop.wait()),
        asyncio.ensure_future(_lost(engine)),
    )
    stopped, lost = waited
    await asyncio.wait({*waited, work}, return_when=asyncio.FIRST_COMPLETED)
    for task in waited:
        task.cancel()
    if isinstance(failure := work.exception() if work.done() else None, LostRankError):
        raise InternalError(engine.dead()) from failure
    if work.done():
        raise InternalError("the engine thread ended by itself") from failure
    if lost.done() and not stopped.done():
        raise InternalError(lost.result())


async def _lost(engine: Engine) -> str:
    """Wait until the model cannot run any more; why, in words."""
    while not (why := engine.dead()):
        await asyncio.sleep(RANK_CHECK_S)
    return why
