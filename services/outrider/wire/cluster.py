"""The cluster's credential: a secret that all services share, and that every internal call carries."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from outrider.config.files import Reloaded, read_bytes
from outrider.core.errors import ConfigError, UnauthenticatedError
from outrider.wire import metadata
from outrider.wire.errors import abort

_LOG = logging.getLogger(__name__)

MIN_TOKEN_CHARS = 16
MAX_TOKEN_CHARS = 512
MAX_TOKENS = 2
"""The one in force, and one that is coming or going."""
HEALTH_METHODS = "/grpc.health.v1.Health/"
"""Probes know no secrets, and the answer is none."""
LOG_INTERVAL_S = 10.0
REFUSED_S = 5.0
"""Longest that the request of a call which is refused is waited for."""

if TYPE_CHECKING:  # neither can be subscripted when it runs
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = aio.ServicerContext[Any, Any]


class ClusterToken:
    """The tokens in a file, one a line: the first is shown to others, all are accepted."""

    def __init__(self, path: str, section: str = "security.cluster_token_file") -> None:
        """Raises ConfigError: the file cannot be read, or holds no usable token."""
        file = Path(path)
        self._tokens = Reloaded([file], lambda: _read(file, section), section)

    def metadata(self) -> tuple[str, str]:
        """What a call carries."""
        return metadata.AUTHORIZATION, f"Bearer {self._tokens.current()[0].decode('ascii')}"

    def accepts(self, authorization: str) -> bool:
        """Whether a call that carries this may go on. Takes as long for a near miss as for any other."""
        shown = authorization.removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        same = [hmac.compare_digest(shown, token) for token in self._tokens.current()]
        return any(same)


class ClusterGate(aio.ServerInterceptor):
    """Refuses every call that does not carry the cluster's credential, but those of health probes."""

    def __init__(self, token: ClusterToken) -> None:
        self._token = token
        self._refused = 0
        self._told = -LOG_INTERVAL_S

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(HEALTH_METHODS):
            return handler
        if self._token.accepts(
            metadata.value(handler_call_details.invocation_metadata, metadata.AUTHORIZATION)
        ):
            return handler
        return refusal(handler, self._refuse)

    async def _refuse(self, request: object, context: Context) -> None:
        self._refused += 1
        now = time.monotonic()
        if now - self._told >= LOG_INTERVAL_S:
            _LOG.warning(
                "%d calls without the cluster's credential were refused, the last one from %s",
                self._refused,
                context.peer(),
            )
            self._told, self._refused = now, 0
        await abort(
            context,
            UnauthenticatedError(
                "the cluster's credential is missing or wrong (security.cluster_token_file)"
            ),
        )


def refusal(handler: Handler, refuse: Callable[[Any, Context], Awaitable[None]]) -> Handler:
    """A handler in the place of another that does nothing but `refuse`. Requests are not even parsed."""
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)

    async def after_the_request(requests: AsyncIterator[bytes], context: Context) -> None:
        # A client that is refused while it still sends may see a broken stream, and no status.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFUSED_S):
                await anext(requests, None)
        await refuse(None, context)

    return grpc.stream_stream_rpc_method_handler(after_the_request)


def _read(path: Path, section: str) -> tuple[bytes, ...]:
    """The tokens. Messages never quote one.

    Raises:
        ConfigError: there is none, or one that no header can carry or that is too easily guessed.
    """
    tokens = tuple(line.strip() for line in read_bytes(path, section).splitlines() if line.strip())
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise ConfigError(
            f"{section}: {path} must hold 1 or {MAX_TOKENS} tokens, one a line, got {len(tokens)}"
        )
    for number, token in enumerate(tokens, 1):
        if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS:
            raise ConfigError(
                f"{section}: token {number} in {path} must have {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} "
                f"characters, got {len(token)}"
            )
        if not all(0x21 <= sign <= 0x7E for sign in token):
            raise ConfigError(f"{section}: token {number} in {path} must be printable ASCII without spaces")
    return tokens
