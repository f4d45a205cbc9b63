"""API keys in front of the gRPC API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from outrider.core.errors import OutriderError, describe
from outrider.gateway.auth.authenticator import Authenticator, bearer
from outrider.gateway.limits import Limiter
from outrider.wire import metadata
from outrider.wire.cluster import HEALTH_METHODS, refusal
from outrider.wire.errors import abort
from outrider.wire.services import GENERATION

COUNTED = frozenset({f"/{GENERATION}/Generate", f"/{GENERATION}/Resume"})
"""Methods that count as requests. To end a generation must stay possible for one who has none left."""

if TYPE_CHECKING:  # neither can be subscripted when it runs
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = aio.ServicerContext[Any, Any]


class KeyGate(aio.ServerInterceptor):
    """Refuses callers without a key, and those who call too often. Health probes need no key."""

    def __init__(
        self, authenticator: Authenticator, limiter: Limiter, refused: Callable[[str, str], None]
    ) -> None:
        """`refused` is told the method (service/name) and the error's label."""
        self._authenticator = authenticator
        self._limiter = limiter
        self._refused = refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(HEALTH_METHODS):
            return handler
        try:
            self.admit(method, handler_call_details.invocation_metadata)
        except OutriderError as error:
            return refusal(handler, _refuse_with(error))
        return handler

    def admit(self, method: str, sent: Iterable[tuple[str, str | bytes]] | None) -> None:
        """Let a call in, of `method` (/service/name) with the metadata `sent`.

        Raises:
            UnauthenticatedError: the key is missing or wrong.
            RateLimitedError: its owner calls too often.
        """
        try:
            tenant = self.tenant(sent)
            if method in COUNTED:
                self._limiter.request(tenant)
        except OutriderError as error:
            self._refused(method.removeprefix("/"), describe(error).label)
            raise

    def tenant(self, sent: Iterable[tuple[str, str | bytes]] | None) -> str:
        """See `tenant_of`."""
        return tenant_of(self._authenticator, sent)


def tenant_of(authenticator: Authenticator, sent: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Whose call it is that carries the metadata `sent`.

    Raises:
        UnauthenticatedError: the key is missing or wrong.
    """
    return authenticator.tenant(bearer(metadata.value(sent, metadata.AUTHORIZATION)))


def _refuse_with(error: OutriderError) -> Callable[[object, Context], Awaitable[None]]:
    async def refuse(request: object, context: Context) -> None:
        await abort(context, error)

    return refuse
