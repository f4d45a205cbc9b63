"""The HTTP server around an application of two lines, for tests of connections."""

import asyncio
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from outrider.config.schema import GatewayConfig
from outrider.gateway.http_server import HttpServer, listening
from outrider.gateway.openai import errors
from outrider.gateway.openai.middleware import BodyDeadline
from outrider.wire.protection import PLAIN


class Bare:
    """Where it is, and what it does."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.gave_up = asyncio.Event()  # nobody reads /endless any more
        self.address = ""
        self.app = FastAPI()
        errors.install(self.app)

        @self.app.post("/echo")
        async def echo(request: Request):
            return {"length": len(await request.body())}

        @self.app.post("/deaf")
        async def deaf():
            return "did not listen"

        @self.app.get("/slow")
        async def slow():
            async def parts():
                yield b"first,"
                await self.release.wait()
                yield b"last"

            return StreamingResponse(parts())

        @self.app.get("/endless")
        async def endless():
            async def parts():
                try:
                    while True:
                        yield bytes(65536)
                        await asyncio.sleep(0)
                finally:
                    self.gave_up.set()

            return StreamingResponse(parts())

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@asynccontextmanager
async def serving(*, protection=PLAIN, **settings):
    config = GatewayConfig(http_port=0, **settings)
    bare = Bare()
    bare.app.add_middleware(BodyDeadline, timeout_s=config.body_timeout_s)
    with listening(config.host, config.http_port) as listener:
        server = HttpServer(bare.app, listener, config, 1.0, protection)
        await server.start()
        bare.address = server.address
        try:
            yield bare
        finally:
            bare.release.set()
            await server.stop()
