"""Both clients behind one face, so that each test runs against each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

from outrider.client import AsyncClient, AsyncStream, Client, Connection, GenerationEvent, Result, Stream
from outrider.core.models import ModelInfo

_END = object()


class EventStream(Protocol):
    """An async iterator of events that can be closed."""

    def __aiter__(self) -> AsyncIterator[GenerationEvent]: ...
    async def __anext__(self) -> GenerationEvent: ...
    def close(self) -> None: ...


class Face(Protocol):
    """What both clients can do."""

    async def generate(self, prompt: Any, **options: Any) -> Result: ...
    def stream(self, prompt: Any, **options: Any) -> EventStream: ...
    def resume(self, generation_id: str, from_token: int = 0) -> EventStream: ...
    async def cancel(self, generation_id: str) -> bool: ...
    async def models(self) -> list[ModelInfo]: ...
    async def close(self) -> None: ...


class Blocking:
    """The blocking client, each call in a thread: the gateway runs in the test's own loop."""

    def __init__(self, connection: Connection | str) -> None:
        self._client = Client(connection)

    async def generate(self, prompt: Any, **options: Any) -> Result:
        return await asyncio.to_thread(self._client.generate, prompt, **options)

    def stream(self, prompt: Any, **options: Any) -> EventStream:
        return BlockingStream(self._client.stream(prompt, **options))

    def resume(self, generation_id: str, from_token: int = 0) -> EventStream:
        return BlockingStream(self._client.resume(generation_id, from_token))

    async def cancel(self, generation_id: str) -> bool:
        return await asyncio.to_thread(self._client.cancel, generation_id)

    async def models(self) -> list[ModelInfo]:
        return await asyncio.to_thread(self._client.models)

    async def close(self) -> None:
        self._client.close()


class BlockingStream:
    """Its stream, read in threads."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[GenerationEvent]:
        return self

    async def __anext__(self) -> GenerationEvent:
        event = await asyncio.to_thread(next, self._stream, _END)
        if event is _END:
            raise StopAsyncIteration
        return event  # type: ignore[return-value]

    def close(self) -> None:
        self._stream.close()


class ForAsyncio:
    """The client for asyncio as it is."""

    def __init__(self, connection: Connection | str) -> None:
        self._client = AsyncClient(connection)

    async def generate(self, prompt: Any, **options: Any) -> Result:
        return await self._client.generate(prompt, **options)

    def stream(self, prompt: Any, **options: Any) -> AsyncStream:
        return self._client.stream(prompt, **options)

    def resume(self, generation_id: str, from_token: int = 0) -> AsyncStream:
        return self._client.resume(generation_id, from_token)

    async def cancel(self, generation_id: str) -> bool:
        return await self._client.cancel(generation_id)

    async def models(self) -> list[ModelInfo]:
        return await self._client.models()

    async def close(self) -> None:
        await self._client.close()
