"""ASGI middleware: request ids, API keys, and bodies that do not come."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.core.errors import OutriderError, describe
from outrider.gateway.auth import Authenticator
from outrider.gateway.auth.authenticator import bearer
from outrider.gateway.limits import Limiter
from outrider.gateway.observation import safe_request_id
from outrider.gateway.openai.errors import BodyTimeoutError, error_response

OPEN_PATHS = frozenset({"/health", "/metrics", "/metrics/targets", "/version"})
"""Served to everybody: probes and scrapers know no keys, and there is nothing secret in what these say."""


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


class ApiKey:
    """Refuses callers without a key, and those who post too often.

    Endpoints find the tenant in `request.state`.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        limiter: Limiter,
        refused: Callable[[str, str], None],
    ) -> None:
        """`refused` is told the path, "other" for any that is not served, and the error's label."""
        self._app = app
        self._authenticator = authenticator
        self._limiter = limiter
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        # Behind a proxy that has given the application a prefix, `path` includes it.
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        if scope["type"] != "http" or path in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = bearer(headers.get("authorization", "")) or headers.get("x-api-key", "")
        try:
            tenant = self._authenticator.tenant(key)
            if scope["method"] == "POST":
                self._limiter.request(tenant)
        except OutriderError as error:
            self._refused(path, describe(error).label)
            await error_response(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)


class BodyDeadline:
    """Ends requests whose body does not come: without it a slow sender keeps its connection for ever."""

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        whole = False

        async def receive_in_time() -> Message:
            nonlocal whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise BodyTimeoutError(f"the body did not come within {self._timeout_s:g} s") from None
            whole = not message.get("more_body", False)
            return message

        await self._app(scope, receive_in_time, send)
