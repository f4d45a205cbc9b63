"""ASGI middleware."""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.gateway.observation import safe_request_id


class RequestId:
    """Echoes X-Request-Id, or gives the request one; endpoints find it in `request.state`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = (
            safe_request_id(Headers(scope=scope).get("x-request-id", "")) or f"req-{uuid.uuid4().hex}"
        )
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("x-request-id", request_id)
            await send(message)

        await self._app(scope, receive, send_with_id)
