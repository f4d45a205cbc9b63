"""The HTTP API behind Serve's proxy: what Serve adds of its own, once."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from outrider.rayserve.tracing import current_traceparent

_REQUEST_ID = "x-request-id"
_TRACEPARENT = "traceparent"


class BehindServe:
    """The ASGI application for Serve, around the whole of ours: FastAPI makes spans too, if Serve does."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.routes = app.routes  # whose names Serve puts into its metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if span := current_traceparent():
            MutableHeaders(scope=scope)[_TRACEPARENT] = span  # else ours would be beside Serve's, not below

        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)[_REQUEST_ID]  # Serve's proxy adds the same one
            await send(message)

        await self._app(scope, receive, send_without_id)
