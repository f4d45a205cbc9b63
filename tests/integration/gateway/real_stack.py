"""A gateway over a real verifier and real drafters, all in this loop, with tiny random models."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import httpx

from outrider.config.schema import OutriderConfig
from outrider.drafting.server import serve as serve_drafter
from outrider.gateway.server import serve as serve_gateway
from outrider.verifying.server import serve as serve_verifier
from tests.servers import free_port


@asynccontextmanager
async def serving(serve, config):
    """Run one service in this loop; gives its addresses."""
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(config, ready=ready.set_result, stop=stop))
    try:
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield ready.result()
    finally:
        stop.set()
        await asyncio.wait((task,))


@asynccontextmanager
async def real_addresses(
    folder, *, drafters=None, verifier=None, gateway=None, store=None, security=None, of_drafters=None
):
    """Addresses of a stack's gateway; the model is called "tiny". `drafters`: name -> settings.

    `of_drafters` is the security of the drafters, if it is not that of all.
    """
    small = {"dtype": "float32", "threads": 1, "pool_tokens": 4096}
    told = {
        "model": str(folder),
        "served_name": "tiny",
        "store": store or {},
        "security": security or {},
        "verifier": small | {"port": 0, "patience_ms": 5000} | (verifier or {}),
        "drafters": {
            name: small | {"port": free_port(), "model": str(folder)} | settings
            for name, settings in (drafters or {}).items()
        },
    }
    config = OutriderConfig(**told)
    async with AsyncExitStack() as stack:
        theirs = OutriderConfig(**told | {"security": of_drafters or told["security"]})
        for name in config.drafters:
            await stack.enter_async_context(serving(partial(serve_drafter, name=name), theirs))
        address = await stack.enter_async_context(serving(serve_verifier, config))
        own = {"http_port": 0, "grpc_port": 0, "verifiers": (address["grpc"],)} | (gateway or {})
        over = OutriderConfig(**told | {"gateway": own})
        yield await stack.enter_async_context(serving(serve_gateway, over))


@asynccontextmanager
async def real_stack(folder, **settings):
    """An HTTP client of a stack; `settings` as `real_addresses` takes them."""
    async with (
        real_addresses(folder, **settings) as addresses,
        httpx.AsyncClient(base_url=addresses["http"], timeout=60) as client,
    ):
        yield client
