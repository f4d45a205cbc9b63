"""A channel whose calls carry a credential, and that follows certificates as they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, cast

import grpc
from grpc import aio

from outrider.wire.tls import Pem

Credential = Callable[[], tuple[str, str]]


class _Connection:
    """One channel of gRPC's own, and how many calls run over it."""

    def __init__(self, channel: aio.Channel, pem: Pem | None) -> None:
        self.channel = channel
        self.pem = pem
        self.running = 0
        self.idle: Callable[[], None] | None = None  # told when the last call is over

    def track(self, call: aio.Call) -> None:
        self.running += 1
        call.add_done_callback(self._done)

    def _done(self, _: object) -> None:
        self.running -= 1
        if not self.running and self.idle is not None:
            self.idle()


class DialledChannel(aio.Channel):
    """Stands where an aio.Channel does.

    When certificates have changed, the next call opens a new connection with them; calls that run keep the
    old one, which is closed behind the last of them.
    """

    def __init__(
        self,
        dial: Callable[[Pem | None], aio.Channel],
        *,
        pem: Callable[[], Pem | None] = lambda: None,
        credential: Credential | None = None,
    ) -> None:
        """Args:
        dial: opens a channel with the certificates in force.
        pem: gives these, the same object until they change; None: there are none.
        credential: metadata that every call carries.
        """
        self._dial = dial
        self._pem = pem
        self._credential = credential
        self._connection = self._dialled(pem())
        self._retired: set[_Connection] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def connection(self) -> _Connection:
        """The one that new calls use."""
        pem = self._pem()
        if pem is not self._connection.pem:
            old, self._connection = self._connection, self._dialled(pem)
            self._retire(old)
        return self._connection

    def credentials(self) -> tuple[tuple[str, str], ...]:
        """Metadata that every call carries."""
        return () if self._credential is None else (self._credential(),)

    async def close(self, grace: float | None = None) -> None:
        """See aio.Channel."""
        retired, self._retired = self._retired, set()
        for connection in (self._connection, *retired):
            connection.idle = None
            await connection.channel.close(grace)
        await asyncio.gather(*self._closing)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See aio.Channel."""
        return self.connection().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See aio.Channel."""
        await self._connection.channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """See aio.Channel."""
        await self.connection().channel.channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        """See aio.Channel."""
        return _Method(self, "unary_unary", args, kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        """See aio.Channel."""
        return _Method(self, "unary_stream", args, kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        """See aio.Channel."""
        return _Method(self, "stream_unary", args, kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        """See aio.Channel."""
        return _Method(self, "stream_stream", args, kwargs)

    async def __aenter__(self) -> Self:
        """See aio.Channel."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See aio.Channel."""
        await self.close()

    def _dialled(self, pem: Pem | None) -> _Connection:
        return _Connection(self._dial(pem), pem)

    def _retire(self, old: _Connection) -> None:
        self._retired.add(old)

        def close() -> None:
            self._retired.discard(old)
            task = asyncio.get_running_loop().create_task(old.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

        if old.running:
            old.idle = close
        else:
            close()


class _Method:
    """One method of a service: a call of it goes over the connection in force."""

    def __init__(
        self, channel: DialledChannel, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._channel = channel
        self._kind = kind
        self._args, self._kwargs = args, kwargs
        self._connection: _Connection | None = None
        self._callable: Callable[..., aio.Call] | None = None

    def __call__(self, *args: Any, metadata: Any = None, **kwargs: Any) -> aio.Call:
        connection = self._channel.connection()
        if self._callable is None or connection is not self._connection:
            self._connection = connection
            self._callable = cast(
                "Callable[..., aio.Call]",
                getattr(connection.channel, self._kind)(*self._args, **self._kwargs),
            )
        call = self._callable(*args, metadata=(*(metadata or ()), *self._channel.credentials()), **kwargs)
        connection.track(call)
        return call
